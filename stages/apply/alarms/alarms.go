// Package alarms keeps which alarms are raised: pairs of a member and a kind. They are replicated, stored in
// bucket alarm, and decide what apply lets pass on every member alike.
//
// A member need not exist to have an alarm: member 0 stands for "nobody knows which", and the alarm of a
// member that was removed stays until it is lowered like any other.
//
// Rule: contract/client-api.md section 11.2; contract/disk-and-peer.md sections 4.4 and 9.5.
package alarms

import (
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"

	"sluice/stages/apply/backend"
)

// ErrUnknownAction refuses an alarm request that neither gets, activates nor deactivates.
var ErrUnknownAction = errors.New("unknown alarm action")

// Alarm is one raised alarm.
type Alarm struct {
	Member uint64
	Type   pb.AlarmType
}

// Set is the live state. Apply's goroutine alone uses it; what others see is its List.
type Set struct {
	list []Alarm           // ascending by type, then by member; replaced, never changed
	view []*pb.AlarmMember // the same for clients
	w    backend.Writer
	raw  map[Alarm][]byte // the bucket keys as they stand, where another encoder wrote them
}

// Load reads bucket alarm from r. Changes go to w.
func Load(r backend.Reader, w backend.Writer) (*Set, error) {
	s := &Set{w: w, raw: map[Alarm][]byte{}}
	var err error
	r.Scan(backend.Alarm, nil, nil, func(k, _ []byte) bool {
		var a Alarm
		if a, err = decode(k); err != nil {
			err = fmt.Errorf("read bucket alarm, key %x: %w", k, err)
			return false
		}
		s.raw[a] = slices.Clone(k)
		s.list = append(s.list, a)
		return true
	})
	slices.SortFunc(s.list, compare)
	s.list = slices.Compact(s.list)
	for _, a := range s.list {
		s.view = append(s.view, a.message())
	}
	return s, err
}

// Any says whether any member has an alarm of this type.
func (s *Set) Any(typ pb.AlarmType) bool {
	return slices.ContainsFunc(s.list, func(a Alarm) bool { return a.Type == typ })
}

// Has says whether a is raised.
func (s *Set) Has(a Alarm) bool {
	_, ok := slices.BinarySearchFunc(s.list, a, compare)
	return ok
}

// Alarms returns all raised alarms. The slice is immutable.
func (s *Set) Alarms() []Alarm { return s.list }

// List returns all raised alarms. The slice and what it holds are immutable.
func (s *Set) List() []*pb.AlarmMember { return s.view }

// Apply executes one request. changed names the alarm that it raised or lowered.
//
// ErrUnknownAction changes nothing.
func (s *Set) Apply(r *pb.AlarmRequest) (resp *pb.AlarmResponse, changed *Alarm, err error) {
	resp = &pb.AlarmResponse{}
	a := Alarm{r.MemberID, r.Alarm}
	switch r.Action {
	case pb.AlarmRequest_GET:
		for _, m := range s.view {
			if r.Alarm == pb.AlarmType_NONE || m.Alarm == r.Alarm {
				resp.Alarms = append(resp.Alarms, m)
			}
		}
		return resp, nil, nil
	case pb.AlarmRequest_ACTIVATE:
		if a.Type == pb.AlarmType_NONE {
			return resp, nil, nil
		}
		if !s.Has(a) {
			s.raise(a)
			changed = &a
		}
	case pb.AlarmRequest_DEACTIVATE:
		if !s.Has(a) {
			return resp, nil, nil
		}
		s.lower(a)
		changed = &a
	default:
		return nil, nil, ErrUnknownAction
	}
	resp.Alarms = []*pb.AlarmMember{a.message()}
	return resp, changed, nil
}

func (s *Set) raise(a Alarm) {
	at, _ := slices.BinarySearchFunc(s.list, a, compare)
	s.list = slices.Insert(slices.Clone(s.list), at, a)
	s.view = slices.Insert(slices.Clone(s.view), at, a.message())
	s.raw[a] = encode(a)
	s.w.Put(backend.Alarm, s.raw[a], []byte{})
}

func (s *Set) lower(a Alarm) {
	at, _ := slices.BinarySearchFunc(s.list, a, compare)
	s.list = slices.Delete(slices.Clone(s.list), at, at+1)
	s.view = slices.Delete(slices.Clone(s.view), at, at+1)
	s.w.Delete(backend.Alarm, s.raw[a])
	delete(s.raw, a)
}

func (a Alarm) message() *pb.AlarmMember { return &pb.AlarmMember{MemberID: a.Member, Alarm: a.Type} }

func compare(a, b Alarm) int {
	switch {
	case a.Type != b.Type:
		return int(a.Type) - int(b.Type)
	case a.Member < b.Member:
		return -1
	case a.Member > b.Member:
		return 1
	}
	return 0
}

// encode is etcdserverpb.AlarmMember {1 memberID, 2 alarm}: the key under which the alarm stands.
func encode(a Alarm) []byte {
	var b []byte
	if a.Member != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), a.Member)
	}
	if a.Type != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(a.Type))
	}
	return b
}

func decode(b []byte) (Alarm, error) {
	var a Alarm
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return a, protowire.ParseError(n)
		}
		m := protowire.ConsumeFieldValue(num, typ, b[n:])
		if m < 0 {
			return a, protowire.ParseError(m)
		}
		if typ == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b[n:])
			switch num {
			case 1:
				a.Member = v
			case 2:
				a.Type = pb.AlarmType(v)
			}
		}
		b = b[n+m:]
	}
	return a, nil
}
