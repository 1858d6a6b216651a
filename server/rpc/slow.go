package rpc

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/peer"

	"sluice/stages/wire"
)

const debugLevel = zapcore.DebugLevel

func sizeFields(total, quota int64) []zap.Field {
	return []zap.Field{zap.Int64("quota-size-bytes", quota), zap.Int64("current-db-size-bytes", total)}
}

// rangeDone meters a Range and logs a slow one.
func (s *Server) rangeDone(r *wire.RangeRequest, start time.Time, out *reply, err error) {
	took := s.cfg.Now().Sub(start)
	s.meters.ranges.observe(took, err)
	s.meters.rangesOnly.observe(took, err)
	if took > s.cfg.WarnApply {
		response := ""
		if err == nil {
			response = fmt.Sprintf("range_response_count:%d size:%d", out.countFields(2), out.size)
		}
		s.logSlowRead("read-only range ", describeRange(r), response, took, err)
	}
}

// readTxnDone does so for a read-only txn.
func (s *Server) readTxnDone(r *wire.TxnRequest, start time.Time, out *reply, err error) {
	took := s.cfg.Now().Sub(start)
	s.meters.readTxns.observe(took, err)
	if took > s.cfg.WarnApply {
		response := ""
		if err == nil {
			response = fmt.Sprintf("responses:<%d> size:%d", out.countFields(3), out.size)
		}
		s.logSlowRead("read-only txn ", describeTxn(r), response, took, err)
	}
}

// logSlowRead writes the line that the reference's operators look for.
//
// Rule: contract/operations.md section 6.3.
func (s *Server) logSlowRead(prefix, request, response string, took time.Duration, err error) {
	s.meters.slow.Add(1)
	fields := []zap.Field{
		zap.Duration("took", took), zap.Duration("expected-duration", s.cfg.WarnApply),
		zap.String("prefix", prefix), zap.String("request", request), zap.String("response", response),
	}
	if err != nil {
		fields = append(fields, zap.Error(err))
	}
	s.logger.Warn("apply request took too long", fields...)
}

// logStats writes the line of a slow unary call, and at debug level of every one. Only KV calls are told in
// detail; values never are.
//
// Rule: contract/operations.md section 6.3.
func (s *Server) logStats(ctx context.Context, m *method, start time.Time, took time.Duration, c *call, r *reply) {
	level := zapcore.DebugLevel
	if took > s.cfg.WarnUnary {
		level = zapcore.WarnLevel
	}
	remote := "No remote client info."
	if p, ok := peer.FromContext(ctx); ok {
		remote = p.Addr.String()
	}
	st := statsOf(c, r)
	s.logger.Log(level, "request stats",
		zap.Time("start time", start), zap.Duration("time spent", took), zap.String("remote", remote),
		zap.String("response type", m.name),
		zap.Int64("request count", st.requests), zap.Int64("request size", st.requestBytes),
		zap.Int64("response count", st.responses), zap.Int64("response size", st.responseBytes),
		zap.String("request content", st.content))
}

// callStats is what a "request stats" line tells of a KV call; -1 stands for unknown.
type callStats struct {
	requests, requestBytes, responses, responseBytes int64
	content                                          string
}

func statsOf(c *call, r *reply) callStats {
	st := callStats{requests: -1, requestBytes: -1, responses: -1, responseBytes: -1}
	if c == nil || c.kind == callCompact {
		return st
	}
	st.requests, st.requestBytes, st.responses, st.responseBytes = 0, int64(c.bytes), 0, 0
	if r != nil {
		st.responseBytes = int64(r.size)
	}
	switch c.kind {
	case callRange:
		st.content = describeRange(&c.rng)
		if r != nil {
			st.responses = r.countFields(2)
		}
	case callPut:
		st.requests, st.content = 1, describePut(&c.put)
	case callDelete:
		st.content = describeDelete(&c.del)
	case callTxn:
		st.requests, st.content = int64(len(c.txn.Success)+len(c.txn.Failure)), describeTxn(&c.txn)
	}
	return st
}

// text collects fields in protobuf's text form, empty ones left out.
type text struct{ strings.Builder }

func (t *text) field(name, value string) {
	if t.Len() > 0 {
		t.WriteByte(' ')
	}
	t.WriteString(name)
	t.WriteByte(':')
	t.WriteString(value)
}

func (t *text) bytes(name string, v []byte) {
	if len(v) > 0 {
		t.field(name, strconv.Quote(string(v)))
	}
}

func (t *text) int(name string, v int64) {
	if v != 0 {
		t.field(name, strconv.FormatInt(v, 10))
	}
}

func (t *text) bool(name string, v bool) {
	if v {
		t.field(name, "true")
	}
}

func (t *text) enum(name string, v int32, names ...string) {
	if v > 0 && int(v) < len(names) {
		t.field(name, names[v])
	}
}

func describeRange(r *wire.RangeRequest) string {
	var t text
	t.bytes("key", r.Key)
	t.bytes("range_end", r.RangeEnd)
	t.int("limit", r.Limit)
	t.int("revision", r.Revision)
	t.enum("sort_order", r.SortOrder, "NONE", "ASCEND", "DESCEND")
	t.enum("sort_target", r.SortTarget, "KEY", "VERSION", "CREATE", "MOD", "VALUE")
	t.bool("serializable", r.Serializable)
	t.bool("keys_only", r.KeysOnly)
	t.bool("count_only", r.CountOnly)
	t.int("min_mod_revision", r.MinModRevision)
	t.int("max_mod_revision", r.MaxModRevision)
	t.int("min_create_revision", r.MinCreateRevision)
	t.int("max_create_revision", r.MaxCreateRevision)
	return t.String()
}

func describePut(r *wire.PutRequest) string {
	var t text
	t.bytes("key", r.Key)
	t.int("value_size", int64(len(r.Value)))
	t.int("lease", r.Lease)
	t.bool("prev_kv", r.PrevKV)
	t.bool("ignore_value", r.IgnoreValue)
	t.bool("ignore_lease", r.IgnoreLease)
	return t.String()
}

func describeDelete(r *wire.DeleteRangeRequest) string {
	var t text
	t.bytes("key", r.Key)
	t.bytes("range_end", r.RangeEnd)
	t.bool("prev_kv", r.PrevKV)
	return t.String()
}

func describeTxn(r *wire.TxnRequest) string {
	var t text
	var compares []string
	for i := range r.Compare {
		compares = append(compares, describeCompare(&r.Compare[i]))
	}
	t.field("compare", "<"+strings.Join(compares, " ")+">")
	t.field("success", "<"+describeOps(r.Success)+">")
	t.field("failure", "<"+describeOps(r.Failure)+">")
	return t.String()
}

func describeCompare(c *wire.Compare) string {
	var t text
	t.enum("result", c.Result, "EQUAL", "GREATER", "LESS", "NOT_EQUAL")
	t.enum("target", c.Target, "VERSION", "CREATE", "MOD", "VALUE", "LEASE")
	t.bytes("key", c.Key)
	t.bytes("range_end", c.RangeEnd)
	switch c.Operand {
	case wire.OperandVersion:
		t.field("version", strconv.FormatInt(c.Int, 10))
	case wire.OperandCreate:
		t.field("create_revision", strconv.FormatInt(c.Int, 10))
	case wire.OperandMod:
		t.field("mod_revision", strconv.FormatInt(c.Int, 10))
	case wire.OperandLease:
		t.field("lease", strconv.FormatInt(c.Int, 10))
	case wire.OperandValue:
		t.field("value_size", strconv.Itoa(len(c.Value)))
	}
	return t.String()
}

func describeOps(ops []wire.RequestOp) string {
	var t text
	for i := range ops {
		switch op := &ops[i]; {
		case op.Range != nil:
			t.field("request_range", "<"+describeRange(op.Range)+">")
		case op.Put != nil:
			t.field("request_put", "<"+describePut(op.Put)+">")
		case op.Delete != nil:
			t.field("request_delete_range", "<"+describeDelete(op.Delete)+">")
		case op.Txn != nil:
			t.field("request_txn", "<"+describeTxn(op.Txn)+">")
		}
	}
	return t.String()
}
