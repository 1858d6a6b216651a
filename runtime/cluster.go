package runtime

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/apply/members"
	"sluice/stages/wire"
)

// Why a member cannot be founded.
var (
	// ErrOneMember: this build serves clusters of one member.
	ErrOneMember = errors.New("clusters of several members are not served by this version: " +
		"--initial-cluster must name this member only")
	// ErrNoJoin: this build cannot join a running cluster.
	ErrNoJoin = errors.New("joining an existing cluster is not served by this version: " +
		"start with --initial-cluster-state=new, or from a data directory")
)

// founding is the membership that an empty log begins with.
type founding struct {
	local, cluster uint64
	members        []members.Member // ascending by id
}

// found derives the ids of a new cluster from the initial cluster string.
//
// Rule: contract/disk-and-peer.md sections 7.1 and 7.2.
func (c *Config) found() (founding, error) {
	if !c.NewCluster {
		return founding{}, ErrNoJoin
	}
	byName, order, err := parseInitialCluster(c.InitialCluster)
	if err != nil {
		return founding{}, err
	}
	local, ok := byName[c.Name]
	if !ok {
		return founding{}, fmt.Errorf("couldn't find local name %q in the initial cluster configuration", c.Name)
	}
	if advertised := sorted(c.AdvertisePeerURLs); !slices.Equal(sorted(local), advertised) {
		var missing []string
		for _, u := range sorted(local) {
			missing = append(missing, c.Name+"="+u)
		}
		return founding{}, fmt.Errorf(
			"--initial-cluster has %s but missing from --initial-advertise-peer-urls=%s (resolved urls: %q != %q)",
			strings.Join(missing, ","), strings.Join(advertised, ","),
			strings.Join(advertised, ","), strings.Join(sorted(local), ","))
	}
	if len(order) > 1 {
		return founding{}, ErrOneMember
	}
	f := founding{}
	var ids []uint64
	for _, name := range order {
		urls := sorted(byName[name])
		m := members.Member{ID: members.MemberID(urls, c.InitialClusterToken), Name: name, PeerURLs: urls}
		f.members = append(f.members, m)
		ids = append(ids, m.ID)
		if name == c.Name {
			f.local = m.ID
		}
	}
	slices.SortFunc(f.members, func(a, b members.Member) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	f.cluster = members.ClusterID(ids)
	return f, nil
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// parseInitialCluster reads name=url[,name=url ...]; a repeated name has several URLs.
func parseInitialCluster(s string) (byName map[string][]string, order []string, err error) {
	byName = map[string][]string{}
	seen := map[string]bool{}
	for _, part := range strings.Split(s, ",") {
		name, u, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || name == "" || u == "" {
			return nil, nil, fmt.Errorf("initial cluster %q: %q is not name=url", s, part)
		}
		if _, err := url.Parse(u); err != nil {
			return nil, nil, fmt.Errorf("initial cluster %q: %w", s, err)
		}
		if seen[u] {
			return nil, nil, fmt.Errorf("initial cluster %s has duplicate url", s)
		}
		seen[u] = true
		if _, ok := byName[name]; !ok {
			order = append(order, name)
		}
		byName[name] = append(byName[name], u)
	}
	return byName, order, nil
}

// entries are the conf changes that found the cluster, committed in term 1 (section 7.3).
func (f founding) entries() []*raftpb.Entry {
	var entries []*raftpb.Entry
	for i, m := range f.members {
		entries = append(entries, wire.NewEntry(raftpb.EntryConfChange, 1, uint64(i+1), encodeConfChange(members.Add(m))))
	}
	return entries
}
