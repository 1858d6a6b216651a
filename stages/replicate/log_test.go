package replicate

import (
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

func logEntries(from, to, term uint64) (es []*raftpb.Entry) {
	for i := from; i <= to; i++ {
		es = append(es, wire.NewEntry(raftpb.EntryNormal, term, i, make([]byte, 10)))
	}
	return es
}

const size = entryOverhead + 10

func TestLog(t *testing.T) {
	hs := &raftpb.HardState{Term: new(uint64(4)), Commit: new(uint64(90))}
	l, err := newLog(Boot{Index: 100, Term: 3, Entries: logEntries(101, 110, 4), HardState: hs})
	if err != nil {
		t.Fatal(err)
	}
	if hs, _, _ := l.InitialState(); hs.GetCommit() != 100 {
		t.Errorf("commit %d below the snapshot", hs.GetCommit())
	}
	check := func(what string, first, last uint64, bytes, unapplied int64) {
		t.Helper()
		f, _ := l.FirstIndex()
		la, _ := l.LastIndex()
		if f != first || la != last || l.bytes != bytes || l.unapplied != unapplied {
			t.Errorf("%s: [%d, %d], %d bytes, %d unapplied; want [%d, %d], %d, %d",
				what, f, la, l.bytes, l.unapplied, first, last, bytes, unapplied)
		}
	}
	check("booted", 101, 110, 10*size, 10*size)
	l.append(logEntries(106, 120, 5))
	check("overwritten", 101, 120, 20*size, 20*size)
	l.appliedTo(110)
	l.appliedTo(105)
	check("applied", 101, 120, 20*size, 10*size)
	held, err := l.Entries(104, 111, 1<<30)
	if err != nil || len(held) != 7 || held[1].GetTerm() != 4 || held[2].GetTerm() != 5 {
		t.Fatalf("%d entries, %v", len(held), err)
	}
	l.cut(107)
	check("cut", 108, 120, 13*size, 10*size)
	if held[0] == nil || held[0].GetIndex() != 104 {
		t.Error("a cut clears what was handed out")
	}
	for _, c := range []struct {
		i, term uint64
		err     error
	}{{106, 0, raft.ErrCompacted}, {107, 5, nil}, {108, 5, nil}, {120, 5, nil}, {121, 0, raft.ErrUnavailable}} {
		if term, err := l.Term(c.i); term != c.term || err != c.err {
			t.Errorf("term of %d: %d, %v", c.i, term, err)
		}
	}
	if _, err := l.Entries(107, 109, 1); err != raft.ErrCompacted {
		t.Error(err)
	}
	if _, err := l.Entries(108, 122, 1); err != raft.ErrUnavailable {
		t.Error(err)
	}
	if es, _ := l.Entries(108, 121, 0); len(es) != 1 {
		t.Errorf("%d entries at size 0, want one", len(es))
	}
	two := uint64(wire.EntrySize(held[0]) * 2)
	if es, _ := l.Entries(108, 121, two); len(es) != 2 {
		t.Errorf("%d entries at twice the size", len(es))
	}
	l.restore(200, 9)
	check("restored", 201, 200, 0, 0)
	if term, err := l.Term(200); term != 9 || err != nil {
		t.Error(term, err)
	}
	l.appliedTo(150) // an acknowledgement that the snapshot has overtaken
	l.append(logEntries(201, 202, 9))
	check("went on", 201, 202, 2*size, 2*size)
}

func TestCutIndex(t *testing.T) {
	l, _ := newLog(Boot{Entries: logEntries(1, 100, 1)})
	l.appliedTo(80)
	for _, c := range []struct {
		catchUp uint64
		bytes   int64
		want    uint64
	}{
		{5000, 1 << 30, 0}, {30, 1 << 30, 50}, {0, 1 << 30, 80},
		{5000, 60 * size, 40}, {5000, 0, 80}, {50, 90 * size, 30}, {50, 60 * size, 40},
	} {
		if got := l.cutIndex(c.catchUp, c.bytes); got != c.want {
			t.Errorf("catch up %d, %d bytes: cut at %d, want %d", c.catchUp, c.bytes, got, c.want)
		}
	}
}

func TestLogRefusesWhatDoesNotJoin(t *testing.T) {
	if _, err := newLog(Boot{Index: 5, Entries: logEntries(7, 8, 1)}); err == nil {
		t.Error("a gap behind the snapshot")
	}
	above := &raftpb.HardState{Term: new(uint64(1)), Commit: new(uint64(3))}
	if _, err := newLog(Boot{Entries: logEntries(1, 2, 1), HardState: above}); err == nil {
		t.Error("a commit index above the log")
	}
	mustPanic := func(what string, fn func(l *log)) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s did not panic", what)
			}
		}()
		l, _ := newLog(Boot{Entries: logEntries(1, 10, 1)})
		l.appliedTo(5)
		fn(l)
	}
	mustPanic("a gap", func(l *log) { l.append(logEntries(12, 12, 1)) })
	mustPanic("an applied entry overwritten", func(l *log) { l.append(logEntries(5, 5, 2)) })
	mustPanic("a cut above applied", func(l *log) { l.cut(6) })
	mustPanic("applied above the log", func(l *log) { l.appliedTo(11) })
}
