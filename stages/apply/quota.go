package apply

import "sluice/stages/wire"

// What a change is reckoned to add to the database, in bytes.
const (
	putOverhead = 256
	grantCost   = 64
)

// Cost is what the request is reckoned to add to the database; 0 for what passes whatever the quota.
//
// Rule: contract/client-api.md sections 6.4, 6.5 and 8.1.
func Cost(r *wire.Request) int64 {
	switch {
	case r.Put != nil:
		return putCost(r.Put)
	case r.Txn != nil:
		return txnCost(r.Txn)
	case r.Other.GetLeaseGrant() != nil:
		return grantCost
	}
	return 0
}

func putCost(r *wire.PutRequest) int64 { return int64(putOverhead + len(r.Key) + len(r.Value)) }

// txnCost is that of the dearer branch, whichever will be taken.
func txnCost(r *wire.TxnRequest) int64 { return max(opsCost(r.Success), opsCost(r.Failure)) }

func opsCost(ops []wire.RequestOp) int64 {
	var n int64
	for i := range ops {
		switch op := &ops[i]; {
		case op.Put != nil:
			n += putCost(op.Put)
		case op.Txn != nil:
			n += txnCost(op.Txn)
		}
	}
	return n
}

// hasPut says whether a branch of r, taken or not, holds a put at any depth.
func hasPut(r *wire.TxnRequest) bool { return anyPut(r.Success) || anyPut(r.Failure) }

func anyPut(ops []wire.RequestOp) bool {
	for i := range ops {
		if ops[i].Put != nil || (ops[i].Txn != nil && hasPut(ops[i].Txn)) {
			return true
		}
	}
	return false
}
