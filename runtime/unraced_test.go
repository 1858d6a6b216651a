//go:build !race

package runtime

// raced says that the race detector is on.
const raced = false
