package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/crypto/bcrypt"
)

// The two modes of auto-compaction.
const (
	ModePeriodic = "periodic"
	ModeRevision = "revision"
)

var errAdvertiseUnset = errors.New(
	"--advertise-client-urls is required when --listen-client-urls is set explicitly")

// check verifies c and puts in the defaults that 0 stands for. explicit holds the names of the settings
// that were given. What it refuses is logged as "failed to verify flags".
func (o *Outcome) check(c *Config, explicit map[string]bool) error {
	c.explicitCluster = explicit["initial-cluster"]
	if err := o.checkLogging(c); err != nil || o.ExitCode != 0 {
		return err
	}
	c.SinglePort = len(c.ListenClientHTTPURLs) == 0
	if c.SinglePort {
		o.note(zap.WarnLevel, "Running http and grpc server on single port. This is not recommended for production.")
	}
	for _, step := range []func(*Config) error{
		checkURLs,
		func(c *Config) error { return checkBootstrap(c, explicit) },
		checkTimes,
		func(c *Config) error {
			if explicit["listen-client-urls"] && !explicit["advertise-client-urls"] && c.ConfigFile == "" {
				return errAdvertiseUnset
			}
			return nil
		},
		checkModes, checkTLSVersions, checkTracing, checkDeferred,
	} {
		if err := step(c); err != nil {
			return err
		}
	}
	o.fillZeros(c)
	if c.Name == DefaultName {
		o.note(zap.WarnLevel, "it isn't recommended to use default name, please set a value for --name. "+
			"Note that etcd might run into issue when multiple members have the same default name",
			zap.String("name", c.Name))
	}
	if explicit["max-snapshots"] {
		o.note(zap.WarnLevel, "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8.")
	}
	if explicit["v2-deprecation"] {
		o.note(zap.WarnLevel, "--v2-deprecation is deprecated and scheduled for removal in v3.8. "+
			"The default value is enforced, ignoring user input.")
	}
	c.V2Deprecation = "write-only"
	return nil
}

// checkLogging comes first: all other complaints need a logger. A bad level is a panic in etcd, with a
// panic's text and exit code.
func (o *Outcome) checkLogging(c *Config) error {
	switch c.Logger {
	case "zap":
	case "capnslog":
		return errors.New("--logger=capnslog is removed in v3.5")
	default:
		return fmt.Errorf("unknown logger option %q", c.Logger)
	}
	if len(c.LogOutputs) > 1 && slices.Contains(c.LogOutputs, "default") {
		return errors.New(`multi logoutput for "default" is not supported yet`)
	}
	if c.LogRotation {
		if err := checkRotation(c); err != nil {
			return err
		}
	}
	if c.LogFormat != "json" && c.LogFormat != "console" {
		return fmt.Errorf("unknown log format: %s, supported values json, console", c.LogFormat)
	}
	if _, err := zapcore.ParseLevel(c.LogLevel); err != nil || c.LogLevel == "dpanic" {
		o.ExitCode = 2
		o.Stderr = fmt.Sprintf("panic: unrecognized level: %q\n", c.LogLevel)
	}
	return nil
}

// Rotation is what --log-rotation-config-json says.
type Rotation struct {
	MaxSize    int  `json:"maxsize"`    // MB
	MaxAge     int  `json:"maxage"`     // days
	MaxBackups int  `json:"maxbackups"` // files
	LocalTime  bool `json:"localtime"`
	Compress   bool `json:"compress"`
}

// Rotation parses the rotation settings, which were checked by Parse if rotation is enabled.
func (c *Config) Rotation() (Rotation, error) {
	var r Rotation
	err := json.Unmarshal([]byte(c.LogRotationJSON), &r)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return r, fmt.Errorf("improperly formatted log rotation config: %w", err)
	case errors.As(err, &kind):
		return r, fmt.Errorf("invalid log rotation config: %w", err)
	}
	return r, err
}

func checkRotation(c *Config) error {
	files := 0
	for _, output := range c.LogOutputs {
		if !slices.Contains([]string{"default", "stderr", "stdout", JournalOutput}, output) {
			files++
		}
	}
	if files != 1 || len(c.LogOutputs) != 1 {
		return errors.New("--log-outputs requires a single file path when --log-rotate-config-json is defined")
	}
	_, err := c.Rotation()
	return err
}

// JournalOutput is the log output that means systemd's journal.
const JournalOutput = "systemd/journal"

func checkURLs(c *Config) error {
	for _, list := range []URLs{c.ListenPeerURLs, c.ListenClientURLs, c.ListenClientHTTPURLs, c.ListenMetricsURLs} {
		for _, u := range list {
			if u.Scheme == "unix" || u.Scheme == "unixs" || u.Hostname() == "localhost" {
				continue
			}
			if net.ParseIP(u.Hostname()) == nil && u.Hostname() != "" {
				return fmt.Errorf("expected IP in URL for binding (%s)", u.String())
			}
		}
	}
	for _, u := range c.AdvertisePeerURLs {
		if _, unix := Unix(u); !unix && u.Hostname() == "" {
			return fmt.Errorf("--initial-advertise-peer-urls %q must be \"host:port\" (unexpected empty host (%s))",
				c.AdvertisePeerURLs.String(), u.String())
		}
	}
	for _, u := range c.AdvertiseClientURLs {
		if _, unix := Unix(u); !unix && u.Hostname() == "" {
			return fmt.Errorf("--advertise-client-urls %q must be in the format \"host:port\", "+
				"\"unix:/path/to/socket\" or \"unixs:/path/to/socket\" (unexpected empty host (%s))",
				c.AdvertiseClientURLs.String(), u.String())
		}
	}
	return nil
}

func checkBootstrap(c *Config, explicit map[string]bool) error {
	d, ways := c.Discovery, 0
	for _, way := range []bool{explicit["initial-cluster"], c.DiscoverySRV != "", len(d.Endpoints) > 0} {
		if way {
			ways++
		}
	}
	if ways > 1 {
		return errors.New(`multiple discovery or bootstrap flags are set. ` +
			`Choose one of "initial-cluster", "discovery-endpoints" or "discovery-srv"`)
	}
	if (d.Token == "") != (len(d.Endpoints) == 0) {
		return errors.New("both --discovery-token and --discovery-endpoints must be set")
	}
	for _, endpoint := range d.Endpoints {
		if strings.TrimSpace(endpoint) == "" {
			return errors.New("--discovery-endpoints must not contain empty endpoints")
		}
	}
	if c.discoveryFallback == "proxy" {
		return errors.New("v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"")
	}
	if c.InitialClusterState != "new" && c.InitialClusterState != "existing" {
		return fmt.Errorf("unexpected clusterState %q", c.InitialClusterState)
	}
	return nil
}

func checkTimes(c *Config) error {
	if c.Heartbeat <= 0 {
		return fmt.Errorf("--heartbeat-interval must be >0 (set to %dms)", c.Heartbeat.Milliseconds())
	}
	if c.Election <= 0 {
		return fmt.Errorf("--election-timeout must be >0 (set to %dms)", c.Election.Milliseconds())
	}
	if 5*c.Heartbeat > c.Election {
		return fmt.Errorf("--election-timeout[%dms] should be at least as 5 times as --heartbeat-interval[%dms]",
			c.Election.Milliseconds(), c.Heartbeat.Milliseconds())
	}
	if c.Election > electionMillisMax*time.Millisecond {
		return fmt.Errorf("--election-timeout[%dms] is too long, and should be set less than %dms",
			c.Election.Milliseconds(), electionMillisMax)
	}
	return nil
}

func checkModes(c *Config) error {
	switch c.AutoCompactionMode {
	case ModePeriodic, ModeRevision:
	case "":
		return errors.New("undefined auto-compaction-mode")
	default:
		return fmt.Errorf("unknown auto-compaction-mode %q", c.AutoCompactionMode)
	}
	if c.FeatureGates.Enabled(GateLeaseCheckpointPersist) && !c.FeatureGates.Enabled(GateLeaseCheckpoint) {
		return errors.New("enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint")
	}
	if c.CompactHashCheckTime <= 0 {
		return fmt.Errorf("--compact-hash-check-time must be >0 (set to %v)", c.CompactHashCheckTime)
	}
	return nil
}

func checkTracing(c *Config) error {
	if !c.EnableTracing {
		return nil
	}
	switch {
	case c.TracingSamplesPerMillion < 0:
		return errors.New("distributed tracing configurition is not valid: (tracing sampling rate must be positive)")
	case c.TracingSamplesPerMillion > 1_000_000:
		return errors.New(
			"distributed tracing configurition is not valid: (tracing sampling rate must be less than 1000000)")
	}
	return nil
}

// checkDeferred refuses what this version would otherwise ignore in silence. Each of these changes what a
// start does, so starting without it would surprise.
func checkDeferred(c *Config) error {
	for _, later := range []struct {
		given bool
		flag  string
	}{
		{c.ForceNewCluster, "--force-new-cluster"},
		{len(c.Discovery.Endpoints) > 0, "--discovery-endpoints"},
		{c.DiscoverySRV != "", "--discovery-srv"},
		{c.EnableTracing, "--enable-distributed-tracing"},
		{c.FeatureGates.Enabled(GateCompactHashCheck), "--feature-gates CompactHashCheck=true"},
		{c.FeatureGates.Enabled(GateInitialCorruptCheck), "--feature-gates InitialCorruptCheck=true"},
		{c.CorruptCheckTime > 0, "--corrupt-check-time"},
		{strings.HasPrefix(c.AuthToken, "jwt"), "--auth-token=jwt"},
		{c.AuthToken == "", "an empty --auth-token"},
	} {
		if later.given {
			return fmt.Errorf("%s is not supported by this version of Sluice", later.flag)
		}
	}
	for _, m := range []struct {
		name     string
		capacity int
	}{
		{"propose", c.Mailboxes.Propose}, {"system", c.Mailboxes.System}, {"replicate", c.Mailboxes.Replicate},
		{"persist", c.Mailboxes.Persist}, {"apply", c.Mailboxes.Apply}, {"watch", c.Mailboxes.Watch},
		{"expire", c.Mailboxes.Expire}, {"backend", c.Mailboxes.Backend},
	} {
		if m.capacity < 0 {
			return fmt.Errorf("--mailbox-%s must be >=0 (set to %d)", m.name, m.capacity)
		}
	}
	if c.RevokesPerSecondMax <= 0 {
		return fmt.Errorf("--revoke-rate must be >0 (set to %d)", c.RevokesPerSecondMax)
	}
	return nil
}

// fillZeros replaces 0 by the default that it stands for.
func (o *Outcome) fillZeros(c *Config) {
	zero := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	count := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	if c.DataDir == "" {
		c.DataDir = c.Name + ".etcd"
	}
	if c.SnapshotCount == 0 {
		o.note(zap.InfoLevel, "set snapshot count to default",
			zap.Uint64("given-snapshot-count", 0), zap.Uint64("updated-snapshot-count", DefaultSnapshotCount))
		c.SnapshotCount = DefaultSnapshotCount
	}
	if c.SnapshotCatchUpEntries == 0 {
		o.note(zap.InfoLevel, "set snapshot catchup entries to default",
			zap.Uint64("given-snapshot-catchup-entries", 0),
			zap.Uint64("updated-snapshot-catchup-entries", DefaultCatchUpEntries))
		c.SnapshotCatchUpEntries = DefaultCatchUpEntries
	}
	if c.QuotaBackendBytes == 0 {
		c.QuotaBackendBytes, c.QuotaIsDefault = DefaultQuotaBytes, true
	}
	zero(&c.BackendBatchInterval, DefaultBatchInterval)
	count(&c.BackendBatchLimit, DefaultBatchLimit)
	count(&c.CompactionBatchLimit, DefaultCompactionBatch)
	zero(&c.CompactionSleepInterval, DefaultCompactionSleep)
	zero(&c.WarnUnaryDuration, DefaultWarnUnary)
	zero(&c.WatchProgressNotifyInterval, DefaultProgressInterval)
	if c.WatchProgressNotifyInterval < progressIntervalMin {
		o.note(zap.WarnLevel, "adjusting watch progress notify interval to minimum period",
			zap.Duration("min-watch-progress-notify-interval", progressIntervalMin))
		c.WatchProgressNotifyInterval = progressIntervalMin
	}
	for _, t := range []struct {
		d    *time.Duration
		name string
	}{{&c.RaftReadTimeout, "raft-read-timeout"}, {&c.RaftWriteTimeout, "raft-write-timeout"}} {
		if *t.d < peerTimeoutMin {
			*t.d = peerTimeoutMin
			o.note(zap.InfoLevel, fmt.Sprintf("%s increased to minimum value: %v", t.name, peerTimeoutMin))
		}
	}
	if c.BcryptCost < uint(bcrypt.MinCost) || c.BcryptCost > uint(bcrypt.MaxCost) {
		o.note(zap.WarnLevel, "use default bcrypt cost instead of the invalid given cost",
			zap.Int("min-cost", bcrypt.MinCost), zap.Int("max-cost", bcrypt.MaxCost),
			zap.Int("default-cost", bcrypt.DefaultCost), zap.Uint("given-cost", c.BcryptCost))
		c.BcryptCost = uint(bcrypt.DefaultCost)
	}
	if c.RequestBytesMax > requestBytesMaxSuggested {
		o.note(zap.WarnLevel, "exceeded recommended request limit",
			zap.Uint("max-request-bytes", c.RequestBytesMax),
			zap.Int("recommended-request-bytes", requestBytesMaxSuggested))
	}
	if c.QuotaBackendBytes > quotaBytesMax {
		o.note(zap.WarnLevel, "quota exceeds the maximum value",
			zap.Int64("quota-backend-bytes", c.QuotaBackendBytes), zap.Int64("maximum-quota-backend-bytes", quotaBytesMax))
	}
}

// Prepare checks what etcd finds only when it starts serving, and parses the texts that need it. Its
// errors are logged as "discovery failed", etcd's word for every failure of that phase.
func (c *Config) Prepare() error {
	if err := c.checkSuites(); err != nil {
		return err
	}
	if !c.SinglePort {
		for _, u := range c.ListenClientURLs {
			for _, h := range c.ListenClientHTTPURLs {
				if u.Host == h.Host && u.Path == h.Path {
					return fmt.Errorf("cannot bind both --listen-client-urls and --listen-client-http-urls "+
						"on the same url %s", u.String())
				}
			}
		}
	}
	noPair := c.ClientTLS.Empty() && !c.ClientAutoTLS
	for _, u := range slices.Concat(c.ListenClientURLs, c.ListenClientHTTPURLs) {
		if Secure(u) && noPair {
			return fmt.Errorf("TLS key/cert (--cert-file, --key-file) must be provided for client url %s "+
				"with HTTPS scheme", u.String())
		}
	}
	for _, u := range c.ListenMetricsURLs {
		if Secure(u) && noPair {
			return errors.New(
				"client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url")
		}
	}
	if kind, _, _ := strings.Cut(c.AuthToken, ","); kind != "simple" { // which has no options: those given mean nothing
		return errors.New("auth: invalid auth options")
	}
	retention, err := parseRetention(c.AutoCompactionMode, c.AutoCompactionRetentionText)
	if err != nil {
		return err
	}
	c.AutoCompactionRetention = retention
	if _, err := c.InitialPeers(); err != nil {
		return fmt.Errorf("error setting up initial cluster: %w", err)
	}
	return nil
}

// parseRetention reads hours or revisions from a whole number, else a duration. A duration in revision
// mode counts its nanoseconds as revisions, which is never reached: etcd's rule, so it is ours.
func parseRetention(mode, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && n >= 0 {
		if mode == ModeRevision {
			return time.Duration(n), nil
		}
		return time.Duration(n) * time.Hour, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("error parsing CompactionRetention: %w", err)
	}
	return d, nil
}
