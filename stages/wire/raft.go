package wire

import (
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
)

// EntrySize returns the encoded length of e as raftpb.Entry.
func EntrySize(e *raftpb.Entry) int {
	n := 0
	if e.Type != nil && *e.Type != raftpb.EntryNormal {
		n += 1 + protowire.SizeVarint(uint64(*e.Type))
	}
	if e.Term != nil {
		n += 1 + protowire.SizeVarint(*e.Term)
	}
	if e.Index != nil {
		n += 1 + protowire.SizeVarint(*e.Index)
	}
	if e.Data != nil {
		n += 1 + protowire.SizeBytes(len(e.Data))
	}
	return n
}

// AppendEntry appends e as raftpb.Entry: a header of term and index in front of Data, the last field, so
// that the request bytes are copied once, into the buffer of the log or of a peer. Type is written only
// when it is not EntryNormal, and Data only when present, as etcd 3.7 writes them.
func AppendEntry(b []byte, e *raftpb.Entry) []byte {
	if e.Type != nil && *e.Type != raftpb.EntryNormal {
		b = protowire.AppendTag(b, 1, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(*e.Type))
	}
	if e.Term != nil {
		b = protowire.AppendTag(b, 2, protowire.VarintType)
		b = protowire.AppendVarint(b, *e.Term)
	}
	if e.Index != nil {
		b = protowire.AppendTag(b, 3, protowire.VarintType)
		b = protowire.AppendVarint(b, *e.Index)
	}
	if e.Data != nil {
		b = AppendBytesField(b, 4, e.Data)
	}
	return b
}

// entrySlab is an Entry with the scalars it points to, so that one allocation makes all four.
type entrySlab struct {
	entry       raftpb.Entry
	typ         raftpb.EntryType
	term, index uint64
}

// NewEntry returns an entry whose fields live in one allocation. data is shared, not copied.
func NewEntry(typ raftpb.EntryType, term, index uint64, data []byte) *raftpb.Entry {
	s := &entrySlab{typ: typ, term: term, index: index}
	s.entry.Type, s.entry.Term, s.entry.Index, s.entry.Data = &s.typ, &s.term, &s.index, data
	return &s.entry
}

// DecodeEntry reads raftpb.Entry. The entry's Data aliases b.
func DecodeEntry(b []byte) (*raftpb.Entry, error) {
	s := &entrySlab{}
	e := &s.entry
	e.Type, e.Term, e.Index = &s.typ, &s.term, &s.index
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return nil, err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.VarintType:
			s.typ = raftpb.EntryType(f.u)
		case f.num == 2 && f.typ == protowire.VarintType:
			s.term = f.u
		case f.num == 3 && f.typ == protowire.VarintType:
			s.index = f.u
		case f.num == 4 && f.typ == protowire.BytesType:
			e.Data = f.b
		}
	}
	return e, nil
}
