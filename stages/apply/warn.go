package apply

import (
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"sluice/stages/wire"
)

// warn logs an entry that was refused or took too long. Only here is a request ever made into text, and no value
// or secret is in it.
//
// Rule: contract/operations.md section 6.3.
func (s *Stage) warn(took time.Duration, r *wire.Request, res *wire.Result) {
	request := describe(r)
	response := fmt.Sprintf("size:%d", len(res.Body)+proto.Size(res.Message))
	if res.Err != nil {
		s.log.Warn("failed to apply request", zap.Duration("took", took), zap.String("request", request),
			zap.String("response", response), zap.Error(res.Err))
	}
	if took <= s.cfg.WarningDuration {
		return
	}
	s.cfg.Metrics.SlowApplies.Add(1)
	fields := []zap.Field{
		zap.Duration("took", took), zap.Duration("expected-duration", s.cfg.WarningDuration),
		zap.String("prefix", ""), zap.String("request", request), zap.String("response", response),
	}
	if res.Err != nil {
		fields = append(fields, zap.Error(res.Err))
	}
	s.log.Warn("apply request took too long", fields...)
}

// describe writes r with its values replaced by their sizes.
func describe(r *wire.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "header:<ID:%d", r.ID)
	if r.Username != "" {
		fmt.Fprintf(&b, " username:%q auth_revision:%d", r.Username, r.AuthRevision)
	}
	b.WriteString(" > ")
	switch {
	case r.Put != nil:
		describePut(&b, r.Put)
	case r.DeleteRange != nil:
		describeDelete(&b, r.DeleteRange)
	case r.Txn != nil:
		describeTxn(&b, r.Txn)
	case r.Compaction != nil:
		fmt.Fprintf(&b, "compaction:<revision:%d physical:%t > ", r.Compaction.Revision, r.Compaction.Physical)
	case r.Other != nil:
		b.WriteString(prototext.MarshalOptions{}.Format(withoutSecrets(r.Other)))
	}
	return strings.TrimSuffix(b.String(), " ")
}

func describeInterval(b *strings.Builder, key, end []byte) {
	fmt.Fprintf(b, "key:%q ", key)
	if len(end) > 0 {
		fmt.Fprintf(b, "range_end:%q ", end)
	}
}

func describePut(b *strings.Builder, r *wire.PutRequest) {
	fmt.Fprintf(b, "put:<key:%q value_size:%d ", r.Key, len(r.Value))
	if r.Lease != 0 {
		fmt.Fprintf(b, "lease:%d ", r.Lease)
	}
	b.WriteString("> ")
}

func describeDelete(b *strings.Builder, r *wire.DeleteRangeRequest) {
	b.WriteString("delete_range:<")
	describeInterval(b, r.Key, r.RangeEnd)
	b.WriteString("> ")
}

func describeTxn(b *strings.Builder, r *wire.TxnRequest) {
	b.WriteString("txn:<")
	for i := range r.Compare {
		c := &r.Compare[i]
		fmt.Fprintf(b, "compare:<target:%d result:%d ", c.Target, c.Result)
		describeInterval(b, c.Key, c.RangeEnd)
		if c.Operand == wire.OperandValue {
			fmt.Fprintf(b, "value_size:%d > ", len(c.Value))
		} else {
			fmt.Fprintf(b, "operand:%d > ", c.Int)
		}
	}
	describeOps(b, "success", r.Success)
	describeOps(b, "failure", r.Failure)
	b.WriteString("> ")
}

func describeOps(b *strings.Builder, branch string, ops []wire.RequestOp) {
	for i := range ops {
		op := &ops[i]
		fmt.Fprintf(b, "%s:<", branch)
		switch {
		case op.Range != nil:
			b.WriteString("range:<")
			describeInterval(b, op.Range.Key, op.Range.RangeEnd)
			b.WriteString("> ")
		case op.Put != nil:
			describePut(b, op.Put)
		case op.Delete != nil:
			describeDelete(b, op.Delete)
		case op.Txn != nil:
			describeTxn(b, op.Txn)
		}
		b.WriteString("> ")
	}
}

// withoutSecrets returns r without password hashes and login tokens.
func withoutSecrets(r *pb.InternalRaftRequest) *pb.InternalRaftRequest {
	r = proto.Clone(r).(*pb.InternalRaftRequest)
	r.Header = nil // it stands before the request already
	if u := r.AuthUserAdd; u != nil {
		u.Password, u.HashedPassword = "", ""
	}
	if u := r.AuthUserChangePassword; u != nil {
		u.Password, u.HashedPassword = "", ""
	}
	if a := r.Authenticate; a != nil {
		a.Password, a.SimpleToken = "", ""
	}
	return r
}
