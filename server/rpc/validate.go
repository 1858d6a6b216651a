package rpc

import (
	"bytes"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sluice/stages/wire"
)

// Bounds of the enums of RangeRequest: anything else is refused.
const (
	sortDescend = 2
	sortAscend  = 1
	targetKey   = 0
	targetValue = 4
)

var (
	errStreamSort   = status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	errStreamFilter = status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
)

func checkRange(r *wire.RangeRequest) error {
	if len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if r.SortOrder < 0 || r.SortOrder > sortDescend || r.SortTarget < 0 || r.SortTarget > targetValue {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

// checkRangeStream refuses what cannot be answered in key order. A sort target without an order is refused
// too: the reference accepts it, and its answer is wrong beyond the first chunk.
func checkRangeStream(r *wire.RangeRequest) error {
	if err := checkRange(r); err != nil {
		return err
	}
	if r.SortOrder == sortDescend || r.SortOrder == sortAscend && r.SortTarget != targetKey {
		return errStreamSort
	}
	if r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0 {
		return errStreamFilter
	}
	if r.SortTarget != targetKey {
		return errStreamSort
	}
	return nil
}

func checkPut(r *wire.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

func checkDelete(r *wire.DeleteRangeRequest) error {
	if len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// checkTxn checks the structure, then the duplicate keys. opsMax is what one level may hold; a nested one may
// hold what its enclosing level has left over.
func checkTxn(r *wire.TxnRequest, opsMax int) error {
	if err := checkTxnLevel(r, opsMax); err != nil {
		return err
	}
	for _, branch := range [...][]wire.RequestOp{r.Success, r.Failure} {
		if _, err := branchChanges(branch); err != nil {
			return err
		}
	}
	return nil
}

// readPresent gives every range of r with a negative revision the revision 0, which also means the present:
// inside a transaction the reference compares a negative one with the compaction revision, so that in one
// entry the two would not do the same (case BC-05).
func readPresent(r *wire.TxnRequest) {
	for _, branch := range [...][]wire.RequestOp{r.Success, r.Failure} {
		for i := range branch {
			switch op := &branch[i]; {
			case op.Range != nil:
				op.Range.Revision = max(op.Range.Revision, 0)
			case op.Txn != nil:
				readPresent(op.Txn)
			}
		}
	}
}

func checkTxnLevel(r *wire.TxnRequest, opsMax int) error {
	n := max(len(r.Compare), len(r.Success), len(r.Failure))
	if n > opsMax {
		return rpctypes.ErrGRPCTooManyOps
	}
	for i := range r.Compare {
		if len(r.Compare[i].Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, branch := range [...][]wire.RequestOp{r.Success, r.Failure} {
		for i := range branch {
			if err := checkOp(&branch[i], opsMax-n); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *wire.RequestOp, opsLeft int) error {
	switch {
	case op.Range != nil:
		return checkRange(op.Range)
	case op.Put != nil:
		return checkPut(op.Put)
	case op.Delete != nil:
		return checkDelete(op.Delete)
	case op.Txn != nil:
		return checkTxnLevel(op.Txn, opsLeft)
	}
	return rpctypes.ErrGRPCKeyNotFound // an operation without a request
}

// changes are the keys and intervals that operations change. op tells apart what the operations of one list
// change: what comes out of one nested txn has its number, for its branches are alternatives.
type changes struct {
	puts []keyChange
	dels []spanChange
}

type keyChange struct {
	key []byte
	op  int
}

type spanChange struct {
	key, end []byte // end empty: the key alone
	op       int
}

// branchChanges collects what one list of operations changes, and refuses the list if two of its operations
// put one key, or one puts what another deletes. Deletes may overlap. The order of the operations does not
// matter, also between nested siblings: the reference lets a put in an earlier sibling followed by a delete in
// a later one pass, so that two changes of one key share a revision (bug case BC-10).
//
// A delete with the range end 0x00 is not seen as "everything from the key on", as in the reference.
func branchChanges(branch []wire.RequestOp) (changes, error) {
	var all changes
	for i := range branch {
		switch op := &branch[i]; {
		case op.Put != nil:
			all.puts = append(all.puts, keyChange{op.Put.Key, i})
		case op.Delete != nil:
			all.dels = append(all.dels, spanChange{op.Delete.Key, op.Delete.RangeEnd, i})
		case op.Txn != nil:
			for _, nested := range [...][]wire.RequestOp{op.Txn.Success, op.Txn.Failure} {
				c, err := branchChanges(nested)
				if err != nil {
					return changes{}, err
				}
				for _, p := range c.puts {
					all.puts = append(all.puts, keyChange{p.key, i})
				}
				for _, d := range c.dels {
					all.dels = append(all.dels, spanChange{d.key, d.end, i})
				}
			}
		}
	}
	return all, all.conflict()
}

// conflict looks for changes by different operations that meet.
func (c *changes) conflict() error {
	if len(c.puts) == 0 || len(c.puts)+len(c.dels) < 2 {
		return nil
	}
	slices.SortFunc(c.puts, func(a, b keyChange) int { return bytes.Compare(a.key, b.key) })
	// other[i] is the first put after i by another operation, so that a span costs two steps, not its puts.
	other := make([]int, len(c.puts))
	for i := len(c.puts) - 1; i >= 0; i-- {
		other[i] = i + 1
		if i+1 < len(c.puts) && c.puts[i+1].op == c.puts[i].op {
			other[i] = other[i+1]
		}
	}
	for i := range c.puts[1:] {
		if bytes.Equal(c.puts[i].key, c.puts[i+1].key) && c.puts[i].op != c.puts[i+1].op {
			return rpctypes.ErrGRPCDuplicateKey
		}
	}
	for _, d := range c.dels {
		at, _ := slices.BinarySearchFunc(c.puts, d.key, func(p keyChange, key []byte) int {
			return bytes.Compare(p.key, key)
		})
		if at < len(c.puts) && c.puts[at].op == d.op {
			at = other[at]
		}
		if at < len(c.puts) && d.holds(c.puts[at].key) {
			return rpctypes.ErrGRPCDuplicateKey
		}
	}
	return nil
}

// holds says whether a key that is not below the span lies in it.
func (d *spanChange) holds(key []byte) bool {
	if len(d.end) == 0 {
		return bytes.Equal(key, d.key)
	}
	return bytes.Compare(key, d.end) < 0
}

// readOnly says whether no operation of r changes anything; a nested txn counts as a change. serializable is
// whether all its ranges are, which holds for a txn without operations whatever it compares.
func readOnly(r *wire.TxnRequest) (only, serializable bool) {
	serializable = true
	for _, branch := range [...][]wire.RequestOp{r.Success, r.Failure} {
		for i := range branch {
			if branch[i].Range == nil {
				return false, false
			}
			serializable = serializable && branch[i].Range.Serializable
		}
	}
	return true, serializable
}
