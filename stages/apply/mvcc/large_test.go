package mvcc

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"sluice/stages/wire"
)

func rangeOps(n int) (ops []wire.RequestOp) {
	for range n {
		ops = append(ops, wire.RequestOp{Range: &wire.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}})
	}
	return ops
}

// largeStore has ten keys of 100 bytes each.
func largeStore(t *testing.T) (*Store, *memory) {
	t.Helper()
	s, mem := emptyStore(t)
	for i := range 10 {
		mustPut(t, s, fmt.Sprintf("k%d", i), strings.Repeat("v", 100))
	}
	return s, mem
}

// A transaction's answer is neither made nor made room for beyond what can be sent; what its compares did not
// choose counts for nothing, however large it would be.
func TestReadTxnAnswerLimit(t *testing.T) {
	s, mem := largeStore(t)
	whole, err := s.Publish(mem.snapshot()).Txn(&wire.TxnRequest{Success: rangeOps(3)})
	if err != nil {
		t.Fatal(err)
	}
	for max, want := range map[int]error{
		len(whole): nil, len(whole) - 100: ErrAnswerTooLarge, len(whole) / 2: ErrAnswerTooLarge, 10: ErrAnswerTooLarge,
	} {
		s.readMax = max
		body, err := s.Publish(mem.snapshot()).Txn(&wire.TxnRequest{Success: rangeOps(3)})
		if !errors.Is(err, want) || want == nil && len(body) != len(whole) {
			t.Errorf("limit %d of %d: %d bytes, %v", max, len(whole), len(body), err)
		}
	}
	s.readMax = 100
	body, err := s.Publish(mem.snapshot()).Txn(&wire.TxnRequest{Failure: rangeOps(1000)})
	if err != nil || cap(body) > 100 {
		t.Errorf("a branch that is not taken: room for %d bytes, %v", cap(body), err)
	}
}

// The answer of a change is bounded, too; the change is made whole, once, with all its events.
func TestChangeAnswerLimit(t *testing.T) {
	prevs := wire.RequestOp{Delete: &wire.DeleteRangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), PrevKV: true}}
	for name, change := range map[string]func(s *Store) (Result, error){
		"ranges": func(s *Store) (Result, error) {
			ops := append(rangeOps(5), deleteOp("k", "l"), putOp("x", "y"))
			return s.Txn(&wire.TxnRequest{Success: append(ops, rangeOps(5)...)})
		},
		"nested": func(s *Store) (Result, error) {
			nested := wire.RequestOp{Txn: &wire.TxnRequest{Success: rangeOps(5)}}
			return s.Txn(&wire.TxnRequest{Success: []wire.RequestOp{nested, deleteOp("k", "l"), putOp("x", "y")}})
		},
		"deletes": func(s *Store) (Result, error) {
			return s.Txn(&wire.TxnRequest{Success: []wire.RequestOp{prevs, putOp("x", "y")}})
		},
	} {
		s, mem := largeStore(t)
		s.changeMax = 1000
		s.TakeEvents()
		before := s.Revision()
		res, err := change(s)
		if !errors.Is(err, ErrAnswerTooLarge) || !res.Changed || res.Revision != before+1 || len(res.Body) != 0 {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		if n := len(s.TakeEvents()); n != 11 {
			t.Errorf("%s: %d events, want 11", name, n)
		}
		left := rangeOf(t, s.Publish(mem.snapshot()), &wire.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
		if left.Count != 1 || string(left.Kvs[0].Key) != "x" {
			t.Errorf("%s: left %v", name, left)
		}
	}
	s, _ := largeStore(t)
	s.changeMax = 1000
	res, err := s.DeleteRange(prevs.Delete)
	if !errors.Is(err, ErrAnswerTooLarge) || !res.Changed || len(res.Body) != 0 {
		t.Errorf("delete: %+v, %v", res, err)
	}
	if s.changeMax = math.MaxInt; s.Revision() != res.Revision {
		t.Errorf("revision %d, want %d", s.Revision(), res.Revision)
	}
}
