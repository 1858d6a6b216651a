package conformance

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Bytes that are no message, or nearly one, get the same answer from both, and end neither.
func TestRandomBytes(t *testing.T) {
	p := pairUp(t, "--bcrypt-cost=4")
	g := &filler{rand.New(rand.NewPCG(seed(t), 3))}
	methods := randomMethods()
	for i := range *opsFlag {
		method := methods[g.IntN(len(methods))]
		m := g.message(methodOf(method).Input(), 4)
		tame(method, m)
		data := g.damage(encoded(t, m))
		if !tamed(method, data) {
			continue
		}
		ref, got := both(p, func(s *party) outcome {
			o := s.call(t.Context(), method, data)
			untidy(method, m, &o)
			if o.code == codes.Internal {
				o.message = "" // the decoders' words
			}
			return o
		})
		if !ref.equal(got) {
			t.Fatalf("%d: %s %x\nreference: %v\nsluice:    %v", i, method, data, ref, got)
		}
	}
}

// tamed says whether data is no message, or one that tame would leave as it is.
func tamed(method string, data []byte) bool {
	m := messageOf(methodOf(method).Input())
	if proto.Unmarshal(data, m) != nil {
		return true
	}
	before := proto.Clone(m)
	tame(method, m)
	return proto.Equal(before, m)
}

// damage changes an encoded message by a few bytes.
func (g *filler) damage(b []byte) []byte {
	b = append([]byte(nil), b...)
	for range 1 + g.IntN(3) {
		switch n := len(b); g.IntN(8) {
		case 0:
			b = b[:g.IntN(n+1)]
		case 1, 2:
			if n > 0 {
				b[g.IntN(n)] = byte(g.IntN(256))
			}
		case 3:
			if n > 0 {
				b[g.IntN(n)] ^= 1 << g.IntN(8)
			}
		case 4: // unknown fields of every wire type
			b = append(b, [][]byte{
				{0xf8, 0x7f, 1}, {0xfa, 0x7f, 2, 'x', 'y'}, {0xf9, 0x7f, 1, 2, 3, 4, 5, 6, 7, 8}, {0xfd, 0x7f, 1, 2, 3, 4},
				{0xfb, 0x7f, 8, 1, 0xfc, 0x7f}, {0xfb, 0x7f}, {0xfc, 0x7f}, {0x07}, {0x00},
			}[g.IntN(9)]...)
		case 5: // a known field under another wire type
			f := byte(1 + g.IntN(8))
			b = append(b, f<<3|byte(g.IntN(6)), byte(g.IntN(4)), 'a', 'b', 'c')
		case 6: // again, so that fields repeat
			b = append(b, b...)
		case 7:
			b = append(b, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80)
		}
	}
	return b
}
