package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The feature gates of etcd 3.7.
const (
	GateCompactHashCheck             = "CompactHashCheck"
	GateFastLeaseKeepAlive           = "FastLeaseKeepAlive"
	GateInitialCorruptCheck          = "InitialCorruptCheck"
	GateLeaseCheckpoint              = "LeaseCheckpoint"
	GateLeaseCheckpointPersist       = "LeaseCheckpointPersist"
	GatePriorityRequest              = "PriorityRequest"
	GateSetMemberLocalAddr           = "SetMemberLocalAddr"
	GateStopGRPCServiceOnDefrag      = "StopGRPCServiceOnDefrag"
	GateTxnModeWriteWithSharedBuffer = "TxnModeWriteWithSharedBuffer"
	gateAllAlpha                     = "AllAlpha"
	gateAllBeta                      = "AllBeta"
)

// Gate is one feature gate and its state.
type Gate struct {
	Name    string
	Stage   string // "ALPHA" or "BETA", as the metric etcd_server_feature_enabled has it
	Enabled bool
}

// knownGates maps the gates that are not mere groups to their stage and default, in order of name.
func knownGates() []Gate {
	return []Gate{
		{gateAllAlpha, "ALPHA", false},
		{gateAllBeta, "BETA", false},
		{GateCompactHashCheck, "ALPHA", false},
		{GateFastLeaseKeepAlive, "BETA", true},
		{GateInitialCorruptCheck, "ALPHA", false},
		{GateLeaseCheckpoint, "ALPHA", false},
		{GateLeaseCheckpointPersist, "ALPHA", false},
		{GatePriorityRequest, "ALPHA", false},
		{GateSetMemberLocalAddr, "ALPHA", false},
		{GateStopGRPCServiceOnDefrag, "ALPHA", false},
		{GateTxnModeWriteWithSharedBuffer, "BETA", true},
	}
}

// FeatureGates is the state of all gates. The zero value has none set.
type FeatureGates struct {
	gates []Gate
	given map[string]bool // as written in --feature-gates
}

func defaultGates() FeatureGates { return FeatureGates{gates: knownGates()} }

// Enabled reports whether the gate called name is on; an unknown name panics.
func (f FeatureGates) Enabled(name string) bool {
	for _, g := range f.gates {
		if g.Name == name {
			return g.Enabled
		}
	}
	panic(fmt.Sprintf("config: unknown feature gate %q", name))
}

// All returns every gate, sorted by name.
func (f FeatureGates) All() []Gate { return slices.Clone(f.gates) }

// String lists what was set explicitly, sorted: "A=true,B=false".
func (f FeatureGates) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(f.given)) {
		pairs = append(pairs, name+"="+strconv.FormatBool(f.given[name]))
	}
	return strings.Join(pairs, ",")
}

// parseGates reads "A=true,B=false". AllAlpha and AllBeta set every gate of their stage that is not named.
func parseGates(text string) (FeatureGates, error) {
	given := make(map[string]bool)
	for _, pair := range strings.Split(text, ",") {
		if pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if !ok {
			return FeatureGates{}, fmt.Errorf("missing bool value for %s", name)
		}
		value = strings.TrimSpace(value)
		on, err := strconv.ParseBool(value)
		if err != nil {
			return FeatureGates{}, fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
		}
		given[name] = on
	}
	gates := knownGates()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.ContainsFunc(gates, func(g Gate) bool { return g.Name == name }) {
			return FeatureGates{}, fmt.Errorf("unrecognized feature gate: %s", name)
		}
	}
	for i, g := range gates {
		if on, ok := given[g.Name]; ok {
			gates[i].Enabled = on
		} else if on, ok := given["All"+g.Stage[:1]+strings.ToLower(g.Stage[1:])]; ok {
			gates[i].Enabled = on
		}
	}
	return FeatureGates{gates: gates, given: given}, nil
}
