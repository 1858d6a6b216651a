package apply

import (
	"sluice/stages/apply/auth"
	"sluice/stages/wire"
)

// LeaseKeys is a lease table as the checks of rights need it: the live one at apply, a view's for the RPCs.
type LeaseKeys interface {
	Keys(id int64, fn func(key string) bool)
}

// MayPut says whether who may make the put: write its key and, because the put changes what the lease will
// delete, every key on the lease; read the key when the previous value is asked for.
//
// Rule: contract/client-api.md section 6.4.
func MayPut(t *auth.Table, leases LeaseKeys, r *wire.PutRequest, who auth.Identity) error {
	if err := t.CheckPut(who, r.Key); err != nil {
		return err
	}
	if r.Lease != 0 {
		if err := MayLease(t, leases, r.Lease, who); err != nil {
			return err
		}
	}
	if r.PrevKV {
		return t.CheckRange(who, r.Key, nil)
	}
	return nil
}

// MayLease says whether who may write every key on the lease id; nobody is asked about a lease without keys.
func MayLease(t *auth.Table, leases LeaseKeys, id int64, who auth.Identity) error {
	if !t.Enabled() {
		return nil
	}
	var err error
	leases.Keys(id, func(key string) bool {
		err = t.CheckPut(who, []byte(key))
		return err == nil
	})
	return err
}

// MayDelete says whether who may delete the interval, and read it when previous values are asked for.
func MayDelete(t *auth.Table, r *wire.DeleteRangeRequest, who auth.Identity) error {
	if err := t.CheckDelete(who, r.Key, r.RangeEnd); err != nil {
		return err
	}
	if r.PrevKV {
		return t.CheckRange(who, r.Key, r.RangeEnd)
	}
	return nil
}

// MayTxn says whether who may make the transaction: everything it compares and every operation of both branches,
// at any depth, whichever will be taken. One that holds nothing needs nobody.
func MayTxn(t *auth.Table, leases LeaseKeys, r *wire.TxnRequest, who auth.Identity) error {
	for i := range r.Compare {
		if err := t.CheckRange(who, r.Compare[i].Key, r.Compare[i].RangeEnd); err != nil {
			return err
		}
	}
	for _, ops := range [][]wire.RequestOp{r.Success, r.Failure} {
		for i := range ops {
			if err := mayOp(t, leases, &ops[i], who); err != nil {
				return err
			}
		}
	}
	return nil
}

func mayOp(t *auth.Table, leases LeaseKeys, op *wire.RequestOp, who auth.Identity) error {
	switch {
	case op.Range != nil:
		return t.CheckRange(who, op.Range.Key, op.Range.RangeEnd)
	case op.Put != nil:
		return MayPut(t, leases, op.Put, who)
	case op.Delete != nil:
		return MayDelete(t, op.Delete, who)
	case op.Txn != nil:
		return MayTxn(t, leases, op.Txn, who)
	}
	return nil
}

func (c *core) mayPut(r *wire.PutRequest, who auth.Identity) error {
	return MayPut(c.auth.Table(), c.leases, r, who)
}

func (c *core) mayTxn(r *wire.TxnRequest, who auth.Identity) error {
	return MayTxn(c.auth.Table(), c.leases, r, who)
}

func (c *core) mayDelete(r *wire.DeleteRangeRequest, who auth.Identity) error {
	return MayDelete(c.auth.Table(), r, who)
}
