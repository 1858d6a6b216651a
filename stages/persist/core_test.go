package persist

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	"sluice/stages/wire"
)

var rewrite = flag.Bool("rewrite", false, "write the output of the scripts into their files")

// TestScripts runs testdata/*.txt. A block is some messages, one a line, that are merged into one plan; behind
// the dashes stands the plan, one step a line.
//
//	append e=FIRST..LAST@TERM hs=TERM,VOTE,COMMIT snap=INDEX@TERM r=NUMBER
//	checkpoint INDEX@TERM
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Fatalf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func runScript(t *testing.T, script string) string {
	c := &core{}
	var blocks []string
	for _, block := range strings.Split(strings.TrimSpace(script), "\n\n") {
		input, _, _ := strings.Cut(block, "\n----")
		out := input
		if !strings.HasPrefix(input, "#") {
			out += "\n----\n" + runBlock(t, c, input)
		}
		blocks = append(blocks, strings.TrimRight(out, "\n"))
	}
	return strings.Join(blocks, "\n\n") + "\n"
}

// runBlock merges the block's messages; a panic is an output as well.
func runBlock(t *testing.T, c *core, input string) (out string) {
	defer func() {
		if r := recover(); r != nil {
			out = fmt.Sprintf("panic: %v\n", r)
		}
	}()
	var p plan
	for _, line := range strings.Split(input, "\n") {
		c.merge(&p, parseMessage(t, line))
	}
	return describe(&p)
}

func parseMessage(t *testing.T, line string) Message {
	t.Helper()
	words := strings.Fields(line)
	if words[0] == "checkpoint" {
		return Checkpoint{Snapshot: snapshotAt(t, words[1])}
	}
	var m Append
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "e":
			var first, last, term uint64
			scan(t, value, "%d..%d@%d", &first, &last, &term)
			for i := first; i <= last; i++ {
				m.Entries = append(m.Entries, wire.NewEntry(raftpb.EntryNormal, term, i, []byte("data")))
			}
		case "hs":
			var term, vote, commit uint64
			scan(t, value, "%d,%d,%d", &term, &vote, &commit)
			m.HardState = &raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}
		case "snap":
			m.Snapshot = snapshotAt(t, value)
		case "r":
			var n int
			scan(t, value, "%d", &n)
			m.Responses = make([]*raftpb.Message, n)
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	return m
}

func snapshotAt(t *testing.T, s string) *raftpb.Snapshot {
	t.Helper()
	var index, term uint64
	scan(t, s, "%d@%d", &index, &term)
	return &raftpb.Snapshot{Data: []byte("image"), Metadata: &raftpb.SnapshotMetadata{
		Index: &index, Term: &term, ConfState: &raftpb.ConfState{Voters: []uint64{1}},
	}}
}

func scan(t *testing.T, s, format string, to ...any) {
	t.Helper()
	if _, err := fmt.Sscanf(s, format, to...); err != nil {
		t.Fatalf("%q is not like %s: %v", s, format, err)
	}
}

func describe(p *plan) string {
	var b strings.Builder
	for _, s := range p.steps {
		switch {
		case s.entries != nil:
			first, last := s.entries[0], s.entries[len(s.entries)-1]
			fmt.Fprintf(&b, "entries %d..%d@%d\n", first.GetIndex(), last.GetIndex(), last.GetTerm())
		case s.file != nil:
			fmt.Fprintf(&b, "save .snap %d\n", s.file.GetMetadata().GetIndex())
		case s.record != nil:
			fmt.Fprintf(&b, "snapshot record %d@%d\n", s.record.Index, s.record.Term)
		default:
			fmt.Fprintf(&b, "state term %d vote %d commit %d\n", s.state.Term, s.state.Vote, s.state.Commit)
		}
	}
	if p.sync {
		b.WriteString("sync\n")
	}
	if p.release > 0 {
		fmt.Fprintf(&b, "release below %d\n", p.release)
	}
	fmt.Fprintf(&b, "ack %d appends, %d responses, last index %d, checkpoint %d\n",
		p.ack.Appends, len(p.ack.Responses), p.ack.LastIndex, p.ack.CheckpointIndex)
	return b.String()
}
