package propose

import "testing"

func TestGathering(t *testing.T) {
	var g gathering
	turn := func(requests int, took int64) (gathered bool) {
		if !g.due() {
			return false
		}
		g.gave(requests, took)
		return true
	}
	for range 10 {
		if !turn(5, 5*int64(gatherWorth)) {
			t.Fatal("what was worth it is not done again")
		}
	}
	// A lone client is asked about less and less often, though never for ever.
	count := func(turns, requests int, took int64) (n int) {
		for range turns {
			if turn(requests, took) {
				n++
			}
		}
		return n
	}
	if n := count(1+1+2+4+8+16+32+5, 1, 0); n != 6 {
		t.Errorf("gathered %d times for one client in its first 69 turns, want 6", n)
	}
	if n := count(33*100, 1, 0); n != 100 {
		t.Errorf("gathered %d times for one client in 3300 turns, want 100", n)
	}
	if n := count(gatherPauseMax+1+50, 2, 0); n < 50 {
		t.Errorf("gathered %d times of 50 after the load came back", n)
	}
	// Behind long work: each time it takes 10 ms, in which a few requests come.
	if n := count(33*100, 8, 10e6); n > 110 {
		t.Errorf("gathered %d times in 3300 turns behind long work", n)
	}
}
