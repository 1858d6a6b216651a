package snap

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Member is a member of the cluster, as the image shows it.
type Member struct {
	ID         uint64
	PeerURLs   []string
	Learner    bool
	Name       string
	ClientURLs []string // empty until the member has published itself: it has no attributes before
}

// eventsMax is the capacity of the image's event history, all of which is written.
const eventsMax = 1000

// node is a directory or a leaf of the image. Children of a leaf is null.
type node struct {
	Path          string
	CreatedIndex  uint64
	ModifiedIndex uint64
	ExpireTime    time.Time
	Value         string
	Children      map[string]*node
}

// event is an entry of the image's history.
type event struct {
	Action string    `json:"action"`
	Node   eventNode `json:"node"`
}

type eventNode struct {
	Key           string `json:"key"`
	Value         string `json:"value"`
	ModifiedIndex uint64 `json:"modifiedIndex"`
	CreatedIndex  uint64 `json:"createdIndex"`
}

type image struct {
	Root           *node
	WatcherHub     watcherHub
	CurrentIndex   uint64
	Stats          stats
	CurrentVersion int
}

type watcherHub struct {
	EventHistory eventHistory
}

type eventHistory struct {
	Queue                 eventQueue
	StartIndex, LastIndex uint64
}

type eventQueue struct {
	Events                      []*event
	Size, Front, Back, Capacity int
}

type stats struct {
	GetsSuccess             uint64 `json:"getsSuccess"`
	GetsFail                uint64 `json:"getsFail"`
	SetsSuccess             uint64 `json:"setsSuccess"`
	SetsFail                uint64 `json:"setsFail"`
	DeleteSuccess           uint64 `json:"deleteSuccess"`
	DeleteFail              uint64 `json:"deleteFail"`
	UpdateSuccess           uint64 `json:"updateSuccess"`
	UpdateFail              uint64 `json:"updateFail"`
	CreateSuccess           uint64 `json:"createSuccess"`
	CreateFail              uint64 `json:"createFail"`
	CompareAndSwapSuccess   uint64 `json:"compareAndSwapSuccess"`
	CompareAndSwapFail      uint64 `json:"compareAndSwapFail"`
	CompareAndDeleteSuccess uint64 `json:"compareAndDeleteSuccess"`
	CompareAndDeleteFail    uint64 `json:"compareAndDeleteFail"`
	ExpireCount             uint64 `json:"expireCount"`
	Watchers                uint64 `json:"watchers"`
}

// V2Image returns the JSON image of the v2 store that an etcd 3.6 would have had for this cluster: the
// Snapshot.Data of every snapshot. removed are ids of removed members. clusterVersion is like "3.7.0", empty
// while undecided. The order of the arguments' elements does not matter.
//
// Rule: contract/disk-and-peer.md section 3; the counters are compared by nobody.
func V2Image(members []Member, removed []uint64, clusterVersion string) ([]byte, error) {
	root := directory("/", 0)
	cluster := directory("/0", 0)
	root.Children["0"], root.Children["1"] = cluster, directory("/1", 0)
	img := &image{Root: root, CurrentVersion: 2}
	img.Stats.GetsFail = 1 // etcd looks for the version before it sets it

	members, removed = slices.Clone(members), slices.Clone(removed)
	slices.SortFunc(members, func(a, b Member) int { return compareID(a.ID, b.ID) })
	slices.Sort(removed)
	for _, m := range members {
		if err := img.member(cluster, m); err != nil {
			return nil, err
		}
	}
	for _, id := range removed {
		dir := img.child(cluster, "removed_members")
		img.set(dir, fmt.Sprintf("%x", id), "", "create")
	}
	if clusterVersion != "" {
		img.set(cluster, "version", clusterVersion, "set")
	}
	img.finish()
	return json.Marshal(img)
}

func compareID(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func directory(path string, index uint64) *node {
	return &node{Path: path, CreatedIndex: index, ModifiedIndex: index, Children: map[string]*node{}}
}

// child returns the directory name below parent, made with the next index if missing.
func (i *image) child(parent *node, name string) *node {
	if n := parent.Children[name]; n != nil {
		return n
	}
	n := directory(parent.Path+"/"+name, i.CurrentIndex+1)
	parent.Children[name] = n
	return n
}

// member adds one member with its attributes.
func (i *image) member(cluster *node, m Member) error {
	dir := i.child(i.child(cluster, "members"), fmt.Sprintf("%x", m.ID))
	raft, err := json.Marshal(struct {
		PeerURLs  []string `json:"peerURLs"`
		IsLearner bool     `json:"isLearner,omitempty"`
	}{m.PeerURLs, m.Learner})
	if err != nil {
		return fmt.Errorf("encode raft attributes of member %x: %w", m.ID, err)
	}
	i.set(dir, "raftAttributes", string(raft), "create")
	if len(m.ClientURLs) == 0 {
		return nil
	}
	attributes, err := json.Marshal(struct {
		Name       string   `json:"name,omitempty"`
		ClientURLs []string `json:"clientURLs,omitempty"`
	}{m.Name, m.ClientURLs})
	if err != nil {
		return fmt.Errorf("encode attributes of member %x: %w", m.ID, err)
	}
	i.set(dir, "attributes", string(attributes), "set")
	return nil
}

// set adds a leaf below dir, with the next index, and its event.
func (i *image) set(dir *node, name, value, action string) {
	i.CurrentIndex++
	leaf := &node{
		Path: dir.Path + "/" + name, CreatedIndex: i.CurrentIndex, ModifiedIndex: i.CurrentIndex, Value: value,
	}
	dir.Children[name] = leaf
	if action == "create" {
		i.Stats.CreateSuccess++
	} else {
		i.Stats.SetsSuccess++
	}
	queue := &i.WatcherHub.EventHistory.Queue
	queue.Events = append(queue.Events, &event{action, eventNode{leaf.Path, value, i.CurrentIndex, i.CurrentIndex}})
}

// finish pads the history with nulls to its capacity, or cuts it to the newest events.
func (i *image) finish() {
	history := &i.WatcherHub.EventHistory
	queue := &history.Queue
	if extra := len(queue.Events) - eventsMax; extra > 0 {
		queue.Events = queue.Events[extra:]
		history.StartIndex = uint64(extra)
	}
	queue.Size, queue.Capacity = len(queue.Events), eventsMax
	queue.Back = queue.Size % eventsMax
	queue.Events = append(queue.Events, make([]*event, eventsMax-queue.Size)...)
	history.StartIndex++
	history.LastIndex = i.CurrentIndex
}
