package lean

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	frameHeaderBytes = 9
	frameBytesMax    = 16 << 10 // the protocol's default, which neither side raises
	readBytes        = 256 << 10
	windowMax        = 1<<31 - 1
	windowDefault    = 1<<16 - 1
	prefixBytes      = 5 // before each gRPC message: a compression flag and the length
)

// StatusError is a call's end other than OK.
type StatusError struct {
	Code    int
	Message string
}

func (e *StatusError) Error() string { return fmt.Sprintf("grpc status %d: %s", e.Code, e.Message) }

// ErrStalled is returned when the server has sent nothing for too long.
var ErrStalled = errors.New("the server sends nothing")

// Handler is told what arrives. An error from it ends the Poll that called it.
type Handler interface {
	// Message receives one message of s; msg is valid during the call only.
	Message(s *Stream, msg []byte) error
	// Ended says that s is over: err is nil for OK, a *StatusError otherwise. s is used again afterwards.
	Ended(s *Stream, err error) error
}

// Stream is one call in progress.
type Stream struct {
	Tag   int   // the caller's own
	Since int64 // the caller's own, such as the time when the call was due

	id       uint32
	room     int64  // bytes that the server lets us send
	consumed int64  // bytes received since the last window update
	partial  []byte // of a message that came in pieces
	seen     bool   // grpc-status was
	status   StatusError
}

// Conn is one connection. It belongs to one goroutine.
type Conn struct {
	handler Handler
	socket  net.Conn
	out     []byte // frames to write
	in      []byte
	inFrom  int // unread part of in
	inTo    int
	timeout time.Time // read deadline of the socket as last set

	encoder   *hpack.Encoder
	block     bytes.Buffer
	blocks    map[string][]byte // header block per method; nil while it has to be encoded
	authority string
	scheme    string
	decoder   *hpack.Decoder
	decoding  *Stream

	streams  map[uint32]*Stream
	spare    []*Stream
	nextID   uint32
	room     int64 // bytes that the server lets us send, over all streams
	initial  int64 // room of a new stream
	most     int   // streams that the server allows at once
	consumed int64
}

// Dial connects to address (host:port); by TLS if config is set.
func Dial(ctx context.Context, address string, config *tls.Config, h Handler) (*Conn, error) {
	var d net.Dialer
	socket, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	c := &Conn{
		handler: h, socket: socket, in: make([]byte, readBytes), authority: address, scheme: "http",
		blocks: map[string][]byte{}, streams: map[uint32]*Stream{}, nextID: 1,
		room: windowDefault, initial: windowDefault, most: 1 << 30,
	}
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"h2"}
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(address) // which Dial has accepted
		}
		secure := tls.Client(socket, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			socket.Close()
			return nil, fmt.Errorf("TLS with %s: %w", address, err)
		}
		c.socket, c.scheme = secure, "https"
	}
	c.encoder = hpack.NewEncoder(&c.block)
	c.decoder = hpack.NewDecoder(4096, c.field)
	c.out = append(c.out, http2.ClientPreface...)
	c.out = appendFrame(c.out, http2.FrameSettings, 0, 0, 6)
	c.out = binary.BigEndian.AppendUint16(c.out, uint16(http2.SettingInitialWindowSize))
	c.out = binary.BigEndian.AppendUint32(c.out, windowMax)
	c.grow(0, windowMax-windowDefault)
	if err := c.Flush(); err != nil {
		socket.Close()
		return nil, err
	}
	return c, nil
}

// Handle makes h the receiver of all that arrives from now on.
func (c *Conn) Handle(h Handler) { c.handler = h }

// Close ends the connection and every call on it.
func (c *Conn) Close() error { return c.socket.Close() }

// Streams is how many calls are in progress.
func (c *Conn) Streams() int { return len(c.streams) }

// CanOpen says whether the server's limits allow one more call with a message of n bytes now.
func (c *Conn) CanOpen(n int) bool {
	return len(c.streams) < c.most && c.room >= int64(n+prefixBytes)
}

// Open begins a call of method, a path such as /etcdserverpb.KV/Put.
func (c *Conn) Open(method string) *Stream {
	var s *Stream
	if n := len(c.spare); n > 0 {
		s, c.spare = c.spare[n-1], c.spare[:n-1]
		*s = Stream{partial: s.partial[:0]}
	} else {
		s = &Stream{}
	}
	s.id, s.room = c.nextID, c.initial
	c.nextID += 2
	c.streams[s.id] = s
	block := c.headers(method)
	c.out = appendFrame(c.out, http2.FrameHeaders, http2.FlagHeadersEndHeaders, s.id, len(block))
	c.out = append(c.out, block...)
	return s
}

// headers encodes the header block of a method. The first one puts its fields into the server's table, where
// it moves what is there already: blocks kept from before are then void. Any later one consists of references
// only, and is kept.
func (c *Conn) headers(method string) []byte {
	if block := c.blocks[method]; len(block) > 0 {
		return block
	}
	c.block.Reset()
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: c.scheme}, {Name: ":path", Value: method},
		{Name: ":authority", Value: c.authority}, {Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "sluice-bench"}, {Name: "te", Value: "trailers"},
	} {
		_ = c.encoder.WriteField(f) // into memory: never fails
	}
	if _, used := c.blocks[method]; used {
		c.blocks[method] = bytes.Clone(c.block.Bytes())
	} else {
		for other := range c.blocks {
			c.blocks[other] = nil
		}
		c.blocks[method] = nil
	}
	return c.block.Bytes()
}

// Send adds a message to s; last says that no more will follow. It fails if the server's window for the
// stream or the connection is too small: see CanOpen.
func (c *Conn) Send(s *Stream, msg []byte, last bool) error {
	n := int64(len(msg) + prefixBytes)
	if n > s.room || n > c.room {
		return fmt.Errorf("send %d bytes: the server allows %d, and %d on the connection", n, s.room, c.room)
	}
	s.room -= n
	c.room -= n
	var prefix [prefixBytes]byte
	binary.BigEndian.PutUint32(prefix[1:], uint32(len(msg)))
	first := true
	for rest := int(n); rest > 0; {
		size := min(rest, frameBytesMax)
		rest -= size
		var flags http2.Flags
		if last && rest == 0 {
			flags = http2.FlagDataEndStream
		}
		c.out = appendFrame(c.out, http2.FrameData, flags, s.id, size)
		if first {
			c.out = append(c.out, prefix[:]...)
			size -= prefixBytes
			first = false
		}
		c.out = append(c.out, msg[:size]...)
		msg = msg[size:]
	}
	return nil
}

// Cancel gives s up. Its handler hears nothing more of it.
func (c *Conn) Cancel(s *Stream) {
	c.out = appendFrame(c.out, http2.FrameRSTStream, 0, s.id, 4)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(http2.ErrCodeCancel))
	delete(c.streams, s.id)
}

// Buffered is how many bytes wait for a Flush.
func (c *Conn) Buffered() int { return len(c.out) }

// Flush writes everything added so far.
func (c *Conn) Flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.socket.Write(c.out)
	c.out = c.out[:0]
	if err != nil {
		return fmt.Errorf("write to %s: %w", c.authority, err)
	}
	return nil
}

func appendFrame(b []byte, t http2.FrameType, flags http2.Flags, id uint32, n int) []byte {
	b = append(b, byte(n>>16), byte(n>>8), byte(n), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

// stallAfter is how long a server may be silent while a caller waits without a deadline of its own.
const stallAfter = 60 * time.Second

// pollMin is the shortest wait.
const pollMin = 20 * time.Microsecond

// Poll flushes, then waits until something arrives and hands it to the handler. With a deadline it returns
// early, with nil, once that has passed; without one (zero) it returns ErrStalled after a minute of silence.
func (c *Conn) Poll(deadline time.Time) error {
	if err := c.Flush(); err != nil {
		return err
	}
	until, wait := deadline, !deadline.IsZero()
	if wait {
		// A deadline that has passed would keep Read from looking at all.
		if soonest := time.Now().Add(pollMin); until.Before(soonest) {
			until = soonest
		}
	} else {
		// Set seldom, since setting it costs as much as a short read.
		until = c.timeout
		if now := time.Now(); until.Sub(now) < stallAfter/2 {
			until = now.Add(stallAfter)
		}
	}
	if until != c.timeout {
		c.timeout = until
		if err := c.socket.SetReadDeadline(until); err != nil {
			return fmt.Errorf("read from %s: %w", c.authority, err)
		}
	}
	if c.inFrom > 0 {
		c.inTo = copy(c.in, c.in[c.inFrom:c.inTo])
		c.inFrom = 0
	}
	n, err := c.socket.Read(c.in[c.inTo:])
	c.inTo += n
	if err != nil && n == 0 {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if wait {
				return nil
			}
			return fmt.Errorf("read from %s: %w", c.authority, ErrStalled)
		}
		return fmt.Errorf("read from %s: %w", c.authority, err)
	}
	return c.frames()
}

func (c *Conn) field(f hpack.HeaderField) {
	s := c.decoding
	switch f.Name {
	case ":status":
		if f.Value != "200" {
			s.seen, s.status = true, StatusError{Code: 2, Message: "HTTP status " + f.Value}
		}
	case "grpc-status":
		code, err := strconv.Atoi(f.Value)
		if err != nil {
			code = 2
		}
		s.seen, s.status.Code = true, code
	case "grpc-message":
		s.status.Message = f.Value
	}
}
