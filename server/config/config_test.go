package config

import (
	"errors"
	"flag"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
)

func parse(t *testing.T, env []string, args ...string) Outcome {
	t.Helper()
	return Parse(Input{
		Args: append([]string{"etcd"}, args...), Environ: env,
		ReadFile:    func(string) ([]byte, error) { return nil, errors.New("no files here") },
		DefaultHost: func() (string, error) { return "192.0.2.7", nil },
	})
}

func effective(t *testing.T, env []string, args ...string) *Config {
	t.Helper()
	out := parse(t, env, args...)
	if out.Config == nil {
		t.Fatalf("did not start: code %d, %s %v", out.ExitCode, out.Stderr, out.Notices)
	}
	if err := out.Config.Prepare(); err != nil {
		t.Fatal(err)
	}
	return out.Config
}

func messages(out Outcome, level zapcore.Level) string {
	var list []string
	for _, n := range out.Notices {
		if n.Level == level {
			list = append(list, n.Message)
		}
	}
	return strings.Join(list, "|")
}

func TestDefaults(t *testing.T) {
	c := effective(t, nil)
	for _, v := range []struct {
		name      string
		got, want any
	}{
		{"data-dir", c.DataDir, "default.etcd"},
		{"quota", c.QuotaBackendBytes, int64(2147483648)},
		{"batch interval", c.BackendBatchInterval, 100 * time.Millisecond},
		{"batch limit", c.BackendBatchLimit, 10000},
		{"compaction batch", c.CompactionBatchLimit, 1000},
		{"compaction sleep", c.CompactionSleepInterval, 10 * time.Millisecond},
		{"progress", c.WatchProgressNotifyInterval, 10 * time.Minute},
		{"election ticks", c.ElectionTicks(), 10},
		{"request timeout", c.RequestTimeout(), 7 * time.Second},
		{"least TTL", c.LeaseTTLMin(), int64(2)},
		{"cluster", c.InitialCluster, "default=http://localhost:2380"},
		{"new cluster", c.IsNewCluster(), true},
		{"retention", c.AutoCompactionRetention, time.Duration(0)},
		{"single port", c.SinglePort, true},
		{"gates", c.FeatureGates.String(), ""},
	} {
		if !reflect.DeepEqual(v.got, v.want) {
			t.Errorf("%s is %v, want %v", v.name, v.got, v.want)
		}
	}
}

// An empty retention, such as wrappers pass on, is none.
func TestEmptyRetention(t *testing.T) {
	if c := effective(t, nil, "--auto-compaction-retention="); c.AutoCompactionRetention != 0 {
		t.Errorf("retention %v", c.AutoCompactionRetention)
	}
}

func TestEffectiveValues(t *testing.T) {
	c := effective(t, []string{"ETCD_ELECTION_TIMEOUT=5000"}, "--name=n1", "-snapshot-count", "0",
		"--snapshot-catchup-entries=0", "--initial-advertise-peer-urls", "http://b:2,http://a:1",
		"--heartbeat-interval=500", "--watch-progress-notify-interval=1ms", "--raft-read-timeout=1s",
		"--bcrypt-cost=99", "--auth-token=simple,a=b", "--quota-backend-bytes=-1", "--host-whitelist=b,a,b", "--cors=http://x:1",
		"--auto-compaction-mode=revision", "--auto-compaction-retention=1000", "--mailbox-apply=1",
		"--feature-gates=AllAlpha=true,PriorityRequest=false,CompactHashCheck=false,InitialCorruptCheck=false",
		"--enable-grpc-gateway=false", "--config=1")
	for _, v := range []struct {
		name      string
		got, want any
	}{
		{"data-dir", c.DataDir, "n1.etcd"},
		{"snapshot-count", c.SnapshotCount, uint64(10000)},
		{"catchup", c.SnapshotCatchUpEntries, uint64(5000)},
		{"election", c.Election, 5 * time.Second},
		{"ticks", c.ElectionTicks(), 10},
		{"least TTL", c.LeaseTTLMin(), int64(8)},
		{"peer urls", c.AdvertisePeerURLs.String(), "http://a:1,http://b:2"},
		{"cluster of a named member", c.InitialCluster, "n1=http://a:1,n1=http://b:2"},
		{"progress", c.WatchProgressNotifyInterval, 100 * time.Millisecond},
		{"read timeout", c.RaftReadTimeout, 5 * time.Second},
		{"bcrypt", c.BcryptCost, uint(10)},
		{"no quota", c.QuotaBackendBytes, int64(-1)},
		{"hosts", c.HostWhitelist, []string{"a", "b"}},
		{"origins", c.CORS, []string{"http://x:1"}},
		{"revisions", c.AutoCompactionRetention, time.Duration(1000)},
		{"mailbox", c.Mailboxes, Mailboxes{Apply: 1}},
		{"gate by group", c.FeatureGates.Enabled(GateLeaseCheckpoint), true},
		{"gate against its group", c.FeatureGates.Enabled(GatePriorityRequest), false},
		{"gateway", c.EnableGateway, false},
	} {
		if !reflect.DeepEqual(v.got, v.want) {
			t.Errorf("%s is %v, want %v", v.name, v.got, v.want)
		}
	}
}

func TestRetention(t *testing.T) {
	for _, c := range []struct {
		mode, text string
		want       time.Duration
	}{
		{ModePeriodic, "0", 0}, {ModePeriodic, "2", 2 * time.Hour}, {ModePeriodic, "5m", 5 * time.Minute},
		{ModePeriodic, "1.5h", 90 * time.Minute}, {ModeRevision, "1000", 1000},
		{ModeRevision, "1h", time.Hour}, // 3.6e12 revisions: never
	} {
		if got, err := parseRetention(c.mode, c.text); err != nil || got != c.want {
			t.Errorf("%s %q: %v %v, want %v", c.mode, c.text, got, err, c.want)
		}
	}
}

func TestEnvironmentNotices(t *testing.T) {
	out := parse(t, []string{"ETCD_NAME=n1", "HOME=/", "ETCD_ZED=1", "ETCD_VERSION=3", "ETCD_DATA_DIR="})
	if out.Config == nil || out.Config.Name != "n1" {
		t.Fatalf("outcome %+v", out)
	}
	if got, want := messages(out, zapcore.WarnLevel), "cannot set special environment variable|"+
		"unrecognized environment variable|unrecognized environment variable|"+
		"Running http and grpc server on single port. This is not recommended for production."; got != want {
		t.Errorf("warnings\n got %s\nwant %s", got, want)
	}
	if got, want := messages(out, zapcore.InfoLevel), "recognized and used environment variable|Running: "; got != want {
		t.Errorf("info\n got %s\nwant %s", got, want)
	}
}

// TestDefaultHost: an advertised URL with its default text, even when it was typed, follows a listener on
// all addresses; the derived initial cluster follows it, a given one does not.
func TestDefaultHost(t *testing.T) {
	c := effective(t, nil, "--name=n1", "--listen-peer-urls=http://0.0.0.0:1380",
		"--listen-client-urls=http://0.0.0.0:1379", "--advertise-client-urls=http://localhost:2379")
	if got := c.AdvertisePeerURLs.String(); got != "http://192.0.2.7:1380" {
		t.Errorf("peer %s", got)
	}
	if got := c.AdvertiseClientURLs.String(); got != "http://192.0.2.7:1379" {
		t.Errorf("client %s", got)
	}
	if got := c.InitialCluster; got != "n1=http://192.0.2.7:1380" {
		t.Errorf("initial cluster %s", got)
	}
	c = effective(t, nil, "--name=n1", "--listen-peer-urls=http://0.0.0.0:1380",
		"--initial-cluster=n1=http://localhost:2380")
	if got := c.InitialCluster; got != "n1=http://localhost:2380" {
		t.Errorf("given initial cluster became %s", got)
	}
	c = effective(t, nil, "--listen-peer-urls=http://127.0.0.1:1380")
	if got := c.AdvertisePeerURLs.String(); got != DefaultListenPeerURLs {
		t.Errorf("not on all addresses, yet peer became %s", got)
	}
}

func TestVersionAndHelp(t *testing.T) {
	// The version is evaluated before the file, the environment and the checks.
	out := parse(t, []string{"ETCD_NAME=a"}, "--name=b", "--heartbeat-interval=0", "--config-file=/missing", "--version")
	lines := strings.Split(out.Stdout, "\n")
	if out.ExitCode != 0 || out.Config != nil || len(lines) != 5 || lines[0] != "etcd Version: 3.7.3" ||
		lines[2] != "Go Version: "+runtime.Version() || lines[3] != "Go OS/Arch: "+runtime.GOOS+"/"+runtime.GOARCH {
		t.Errorf("version %+v", out)
	}
	help := parse(t, nil, "-h")
	if help.ExitCode != 0 || !strings.HasPrefix(help.Stderr, "Usage:\n") || !strings.HasPrefix(help.Stdout, "Member:\n") {
		t.Errorf("help %+v", help)
	}
	version := false
	flagSet(Default(), &version).VisitAll(func(f *flag.Flag) {
		if _, ignored := f.Value.(ignoredValue); ignored || f.Name == "version" || f.Name == "config-file" {
			return
		}
		if !strings.Contains(help.Stdout, "  --"+f.Name+" ") && !strings.Contains(help.Stdout, "  --"+f.Name+"\n") {
			t.Errorf("--%s is not in the help", f.Name)
		}
	})
	for _, line := range strings.Split(help.Stdout, "\n") {
		name, isFlag := strings.CutPrefix(line, "  --")
		name, _, _ = strings.Cut(name, " ")
		if isFlag && flagSet(Default(), &version).Lookup(name) == nil {
			t.Errorf("the help has --%s, which is no flag", name)
		}
	}
}

func TestConfigFile(t *testing.T) {
	text := `
name: n1
data-dir: /data
listen-client-urls: http://127.0.0.1:1
heartbeat-interval: 500
election-timeout: 5000
watch-progress-notify-interval: 600000000000
auto-compaction-retention: "5m"
experimental-something: 3
cors: ""
log-outputs: [stderr]
client-transport-security: {cert-file: c, key-file: k, allowed-cn: [a]}
socket-options: {reuse-port: true}
feature-gates: LeaseCheckpoint=true
mailbox-watch: 7
`
	out := Parse(Input{
		Args: []string{"etcd", "--config-file=f", "--name=ignored"}, Environ: []string{"ETCD_NAME=x", "ETCD_FOO=y"},
		ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
	})
	c := out.Config
	if c == nil {
		t.Fatalf("did not start: %+v", out)
	}
	if err := c.Prepare(); err != nil {
		t.Fatal(err)
	}
	if c.Name != "n1" || c.DataDir != "/data" || c.Heartbeat != 500*time.Millisecond || c.Election != 5*time.Second ||
		c.AutoCompactionRetention != 5*time.Minute || c.ClientTLS.CertFile != "c" || !c.SocketReusePort ||
		c.InitialCluster != "n1=http://localhost:2380" || c.Mailboxes.Watch != 7 || c.CORS[0] != "*" ||
		c.AdvertiseClientURLs.String() != DefaultListenClientURLs || !c.FeatureGates.Enabled(GateLeaseCheckpoint) ||
		c.WatchProgressNotifyInterval != 10*time.Minute || c.ClientTLS.AllowedCNs[0] != "a" {
		t.Errorf("config %+v", c)
	}
	if got := messages(out, zapcore.WarnLevel); strings.Contains(got, "environment") {
		t.Errorf("the environment was looked at: %s", got)
	}
}

// FuzzFlags looks for panics; whatever starts must also pass a second parse of the same line.
func FuzzFlags(f *testing.F) {
	for _, s := range starts() {
		f.Add(s.args)
	}
	f.Add("--initial-cluster a=http://a:1,a=http://b:2 --name a")
	f.Add("--listen-client-urls unix://a:1 --advertise-client-urls unixs:///x")
	f.Fuzz(func(t *testing.T, line string) {
		in := Input{Args: append([]string{"etcd"}, strings.Fields(line)...),
			ReadFile: func(string) ([]byte, error) { return []byte(line), nil }}
		out := Parse(in)
		if (out.Config == nil) != (Parse(in).Config == nil) {
			t.Errorf("%q starts once and not twice", line)
		}
		if out.Config != nil {
			_ = out.Config.Prepare()
		}
	})
}
