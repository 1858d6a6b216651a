package mvcc

import (
	"fmt"

	"sluice/stages/apply/backend"
	"sluice/stages/wire"
)

// History calls fn for every change with from <= main revision <= to, in order, as an event, until fn
// returns false. The event is fn's for the call, its bytes for as long as the view is. Prev is not filled:
// PrevUnknown says that Get at Rev-1 would find it, if it has not been compacted.
//
// ErrCompacted: from is below the last compaction. At the compaction revision itself what the compaction
// leaves is delivered, deletions included.
//
// Rule: contract/client-api.md 7.3 and 7.4; cases/bug-cases BC-17.
func (v *View) History(from, to int64, fn func(ev *wire.Event) bool) error {
	if from < v.compactRev {
		return ErrCompacted
	}
	to = min(to, v.rev)
	first, last := revision{main: max(from, 0)}.append(nil), revision{main: max(to+1, 0)}.append(nil)
	var ev wire.Event
	v.reader.Scan(backend.Key, first, last, func(key, value []byte) bool {
		if len(value) == 0 {
			return true // what a restore with a bumped revision leaves as its mark
		}
		rev := parseRevision(key)
		var kv wire.KeyValue
		if err := kv.Decode(value); err != nil {
			panic(fmt.Sprintf("mvcc: record %d.%d: %v", rev.main, rev.number(), err))
		}
		ev = wire.Event{Type: wire.EventPut, Key: kv.Key, Rev: rev.main, KV: value}
		if rev.deleted() {
			ev.Type = wire.EventDelete
			gone := wire.KeyValue{Key: kv.Key, ModRevision: rev.main}
			ev.KV = gone.Append(make([]byte, 0, gone.Size()))
		}
		ev.Created = ev.Type == wire.EventPut && kv.CreateRevision == kv.ModRevision
		ev.PrevUnknown = !ev.Created
		return fn(&ev)
	})
	return nil
}
