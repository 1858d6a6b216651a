package runtime

import (
	"strings"
	"testing"

	"sluice/mailbox"
)

// circle returns a circle of edges that may wait, nil when there is none.
func circle(edges []Edge) []string {
	next := map[string][]string{}
	for _, e := range edges {
		if e.Full == mailbox.Wait && !e.Reserved {
			next[e.From] = append(next[e.From], e.To)
		}
	}
	done, on := map[string]bool{}, map[string]bool{}
	var path []string
	var visit func(string) []string
	visit = func(n string) []string {
		if on[n] {
			return append(path, n)
		}
		if done[n] {
			return nil
		}
		on[n], path = true, append(path, n)
		for _, to := range next[n] {
			if c := visit(to); c != nil {
				return c
			}
		}
		on[n], done[n], path = false, true, path[:len(path)-1]
		return nil
	}
	for n := range next {
		if c := visit(n); c != nil {
			return c
		}
	}
	return nil
}

// design.md section 2, rule 4: sends that may wait form no circle, and replicate never waits.
func TestWaitingEdgesFormNoCircle(t *testing.T) {
	if c := circle(Edges()); c != nil {
		t.Errorf("these stages may wait for each other: %s: reserve the way back", strings.Join(c, " -> "))
	}
	for _, e := range Edges() {
		if e.From == "replicate" && e.Full == mailbox.Wait {
			t.Errorf("replicate may wait for %s: give it credits and let it keep what it may not send", e.To)
		}
	}
}

// The test above finds a circle when there is one.
func TestCircleIsFound(t *testing.T) {
	planted := append(Edges(), Edge{From: "watch", To: "propose", Full: mailbox.Wait},
		Edge{From: "replicate", To: "apply", Full: mailbox.Wait})
	if circle(planted) == nil {
		t.Error("propose -> replicate -> apply -> watch -> propose was not found")
	}
}
