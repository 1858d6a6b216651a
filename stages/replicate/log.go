package replicate

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

// entryOverhead is what an entry occupies beyond its data: the struct, its scalars and its place here.
const entryOverhead = 128

func entryBytes(e *raftpb.Entry) int64 { return int64(len(e.GetData())) + entryOverhead }

func entriesBytes(entries []*raftpb.Entry) int64 {
	var n int64
	for _, e := range entries {
		n += entryBytes(e)
	}
	return n
}

// log is raft's Storage: the entries behind the last cut, in memory, put in when a Ready is taken. It is
// written and read on the stage's goroutine only.
//
// Entries hands out copies of the slice, never a part of it, because a cut clears what it drops: otherwise
// one small slice held by a slow peer would keep the whole array, and every entry in it, alive.
type log struct {
	hardState *raftpb.HardState // as at boot
	confState *raftpb.ConfState // as at boot
	index     uint64            // of the entry before the first one here; its term is kept for matching
	term      uint64
	entries   []*raftpb.Entry // entries[i] has index index+1+i
	bytes     int64           // of entries, by entryBytes
	applied   uint64
	unapplied int64 // bytes of the entries above applied

	wanted bool             // raft asked for a snapshot since the last offer
	offer  *raftpb.Snapshot // handed out once
}

// newLog makes the log that begins behind the snapshot at (index, term).
func newLog(b Boot) (*log, error) {
	l := &log{hardState: b.HardState, confState: b.ConfState, index: b.Index, term: b.Term, applied: b.Index}
	if l.confState == nil {
		l.confState = &raftpb.ConfState{}
	}
	for i, e := range b.Entries {
		if want := b.Index + 1 + uint64(i); e.GetIndex() != want {
			return nil, fmt.Errorf("replicate: log has entry %d where %d is due", e.GetIndex(), want)
		}
	}
	l.append(b.Entries)
	if raft.IsEmptyHardState(b.HardState) {
		return l, nil
	}
	if commit := b.HardState.GetCommit(); commit > l.last() {
		return nil, fmt.Errorf("replicate: commit index %d is above the last entry %d", commit, l.last())
	} else if commit < b.Index {
		// What a snapshot covers is committed, also when the commit index that said so was not flushed.
		l.hardState = &raftpb.HardState{
			Term: new(b.HardState.GetTerm()), Vote: new(b.HardState.GetVote()), Commit: new(b.Index),
		}
	}
	return l, nil
}

func (l *log) last() uint64 { return l.index + uint64(len(l.entries)) }

// append adds entries and drops what they overwrite. They must join what is here.
func (l *log) append(entries []*raftpb.Entry) {
	if len(entries) == 0 {
		return
	}
	first := entries[0].GetIndex()
	if first <= l.applied || first > l.last()+1 {
		panic(fmt.Sprintf("replicate: append at %d to a log of (%d, %d], applied %d", first, l.index, l.last(), l.applied))
	}
	keep := int(first - l.index - 1)
	for i := keep; i < len(l.entries); i++ {
		n := entryBytes(l.entries[i])
		l.bytes -= n
		l.unapplied -= n
		l.entries[i] = nil
	}
	l.entries = append(l.entries[:keep], entries...)
	for _, e := range entries {
		n := entryBytes(e)
		l.bytes += n
		l.unapplied += n
	}
}

// restore replaces the log by a received snapshot.
func (l *log) restore(index, term uint64) {
	clear(l.entries)
	l.entries, l.bytes, l.unapplied = l.entries[:0], 0, 0
	l.index, l.term = index, term
	l.applied = index
}

// appliedTo records that apply has finished the entries up to index. An index below the log is ignored: a
// received snapshot has overtaken what was applied.
func (l *log) appliedTo(index uint64) {
	if index > l.last() {
		panic(fmt.Sprintf("replicate: applied %d above the last entry %d", index, l.last()))
	}
	for l.applied < index {
		l.applied++
		l.unapplied -= entryBytes(l.entries[l.applied-l.index-1])
	}
}

// cut drops the entries up to index, which stays known by its term.
func (l *log) cut(index uint64) {
	if index <= l.index {
		return
	}
	if index > l.applied {
		panic(fmt.Sprintf("replicate: cut at %d above applied %d", index, l.applied))
	}
	n := int(index - l.index)
	l.term = l.entries[n-1].GetTerm()
	for _, e := range l.entries[:n] {
		l.bytes -= entryBytes(e)
	}
	rest := copy(l.entries, l.entries[n:])
	clear(l.entries[rest:])
	l.entries, l.index = l.entries[:rest], index
}

// cutIndex returns where to cut so that at most catchUp applied entries and bytesMax bytes remain.
func (l *log) cutIndex(catchUp uint64, bytesMax int64) uint64 {
	at := l.index
	if l.applied > catchUp {
		at = max(at, l.applied-catchUp)
	}
	bytes := l.bytes
	for i := l.index; i < at; i++ {
		bytes -= entryBytes(l.entries[i-l.index])
	}
	for bytes > bytesMax && at < l.applied {
		bytes -= entryBytes(l.entries[at-l.index])
		at++
	}
	return at
}

// InitialState implements raft.Storage.
func (l *log) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	return l.hardState, l.confState, nil
}

// Entries implements raft.Storage.
func (l *log) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	if lo <= l.index {
		return nil, raft.ErrCompacted
	}
	if hi > l.last()+1 {
		return nil, raft.ErrUnavailable
	}
	from := l.entries[lo-l.index-1 : hi-l.index-1]
	if len(from) == 0 {
		return nil, nil
	}
	n, size := 1, uint64(wire.EntrySize(from[0]))
	for ; n < len(from); n++ {
		size += uint64(wire.EntrySize(from[n]))
		if size > maxSize {
			break
		}
	}
	return append([]*raftpb.Entry(nil), from[:n]...), nil
}

// Term implements raft.Storage.
func (l *log) Term(i uint64) (uint64, error) {
	switch {
	case i < l.index:
		return 0, raft.ErrCompacted
	case i == l.index:
		return l.term, nil
	case i > l.last():
		return 0, raft.ErrUnavailable
	}
	return l.entries[i-l.index-1].GetTerm(), nil
}

// LastIndex implements raft.Storage.
func (l *log) LastIndex() (uint64, error) { return l.last(), nil }

// FirstIndex implements raft.Storage.
func (l *log) FirstIndex() (uint64, error) { return l.index + 1, nil }

// Snapshot implements raft.Storage: an offer that still joins the log is handed out once, else the wish is
// recorded and raft asks again at the follower's next sign of life.
func (l *log) Snapshot() (*raftpb.Snapshot, error) {
	if s := l.offer; s != nil {
		l.offer = nil
		if s.GetMetadata().GetIndex() >= l.index {
			return s, nil
		}
	}
	l.wanted = true
	return nil, raft.ErrSnapshotTemporarilyUnavailable
}
