package alarms

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/backend"
	"sluice/stages/apply/buckets"
)

// TestStoredForm compares with the bytes of contract/disk-and-peer.md section 4.4, and lowers what another
// encoder stored under a longer key.
func TestStoredForm(t *testing.T) {
	m := buckets.New()
	s, err := Load(m, m)
	if err != nil {
		t.Fatal(err)
	}
	raise := func(member uint64, typ pb.AlarmType) {
		t.Helper()
		r := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: typ}
		if _, changed, err := s.Apply(r); err != nil || changed == nil {
			t.Fatalf("%v: %v, %v", r, changed, err)
		}
	}
	raise(0x64674cd17a494f9e, pb.AlarmType_NOSPACE)
	before := s.List()
	raise(0, pb.AlarmType_CORRUPT)
	if len(before) != 1 {
		t.Errorf("a list that was given out changed: %v", before)
	}
	want := "alarm 089e9fa5d2979ad3b3641001 = \nalarm 1002 = \n"
	if got := buckets.Dump(m); got != want {
		t.Errorf("bucket\n%swant\n%s", got, want)
	}
	m.Put(backend.Alarm, []byte{0x08, 0x00, 0x10, 0x01}, []byte{}) // member 0 written out
	if s, err = Load(m, m); err != nil {
		t.Fatal(err)
	}
	if !s.Has(Alarm{0, pb.AlarmType_NOSPACE}) || !s.Any(pb.AlarmType_CORRUPT) || len(s.Alarms()) != 3 {
		t.Errorf("loaded %v", s.Alarms())
	}
	for _, a := range s.Alarms() {
		r := &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.Member, Alarm: a.Type}
		if _, changed, err := s.Apply(r); err != nil || *changed != a {
			t.Errorf("%v: %v, %v", r, changed, err)
		}
	}
	if got := buckets.Dump(m); got != "" || len(s.List()) != 0 {
		t.Errorf("after all were lowered:\n%s%v", got, s.List())
	}
}

// TestRefusals: an unknown action changes nothing; garbage in the bucket is named.
func TestRefusals(t *testing.T) {
	m := buckets.New()
	s, err := Load(m, m)
	if err != nil {
		t.Fatal(err)
	}
	if _, changed, err := s.Apply(&pb.AlarmRequest{Action: 3}); !errors.Is(err, ErrUnknownAction) || changed != nil {
		t.Errorf("unknown action: %v, %v", changed, err)
	}
	m.Put(backend.Alarm, []byte{0x08}, nil)
	if _, err := Load(m, m); err == nil || !strings.Contains(err.Error(), "key 08") {
		t.Errorf("garbage: %v", err)
	}
}

// FuzzDecode: no key makes the start fail otherwise than by an error, and the generated code reads the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x08, 0x01, 0x10, 0x01})
	f.Add([]byte{0x10, 0x02})
	f.Fuzz(func(t *testing.T, b []byte) {
		var want pb.AlarmMember
		theirs := proto.Unmarshal(b, &want)
		got, err := decode(b)
		if theirs != nil {
			return // it also refuses field numbers and groups that do not matter here
		}
		if err != nil || got != (Alarm{want.MemberID, want.Alarm}) {
			t.Errorf("%x: %+v, %v, want %v", b, got, err, &want)
		}
	})
}

// The list for clients is that of the set at every moment, and what was handed out before stays as it was.
func TestListFollows(t *testing.T) {
	m := buckets.New()
	s, err := Load(m, m)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		before := s.List()
		was := fmt.Sprint(before)
		r := &pb.AlarmRequest{
			Action: pb.AlarmRequest_AlarmAction(1 + rnd.IntN(2)), MemberID: uint64(rnd.IntN(4)), Alarm: pb.AlarmType(rnd.IntN(5) - 1),
		}
		if _, _, err := s.Apply(r); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(before) != was {
			t.Fatalf("%v changed a list that was handed out: %s", r, was)
		}
		again, err := Load(m, m)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprint(s.List()), fmt.Sprint(again.List()); got != want || len(s.Alarms()) != len(s.List()) {
			t.Fatalf("%v: %s, want %s", r, got, want)
		}
	}
}
