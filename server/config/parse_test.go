package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
)

// start is one way to start a member that ends at once, and how it ends.
type start struct {
	args string // fields
	env  []string
	file string // content of --config-file
	code int
	line string // first line of stderr, when it is not a log line
	err  string // the error field of the line that says why
	own  bool   // Sluice's own: not compared with etcd
}

func starts() []start {
	const verify = 1
	return []start{
		{args: "--nope", code: 2, line: "flag provided but not defined: -nope"},
		{args: "-nope=3", code: 2, line: "flag provided but not defined: -nope"},
		{args: "---nope", code: 2, line: "bad flag syntax: ---nope"},
		{args: "--name", code: 2, line: "flag needs an argument: -name"},
		{args: "--heartbeat-interval=x", code: 2, line: `invalid value "x" for flag -heartbeat-interval: parse error`},
		{args: "--heartbeat-interval=-1", code: 2, line: `invalid value "-1" for flag -heartbeat-interval: parse error`},
		{args: "--heartbeat-interval=99999999999999999999", code: 2,
			line: `invalid value "99999999999999999999" for flag -heartbeat-interval: value out of range`},
		{args: "--pre-vote=maybe", code: 2, line: `invalid boolean value "maybe" for -pre-vote: parse error`},
		{args: "--max-request-bytes -1", code: 2, line: `invalid value "-1" for flag -max-request-bytes: parse error`},
		{args: "--grpc-keepalive-min-time 5", code: 2,
			line: `invalid value "5" for flag -grpc-keepalive-min-time: parse error`},
		{args: "--quota-backend-bytes=2GiB", code: 2,
			line: `invalid value "2GiB" for flag -quota-backend-bytes: parse error`},
		{args: "--max-concurrent-streams=x", code: 2,
			line: `invalid value "x" for flag -max-concurrent-streams: strconv.ParseUint: parsing "x": invalid syntax`},
		{args: "--max-concurrent-streams=4294967296", code: 2, line: `invalid value "4294967296" for flag ` +
			`-max-concurrent-streams: strconv.ParseUint: parsing "4294967296": value out of range`},
		{args: "--listen-client-urls foo", code: 2,
			line: `invalid value "foo" for flag -listen-client-urls: URL scheme must be http, https, unix, or unixs: foo`},
		{args: "--listen-peer-urls http://a/b", code: 2,
			line: `invalid value "http://a/b" for flag -listen-peer-urls: URL address does not have the form "host:port": http://a/b`},
		{args: "--listen-peer-urls http://a:1/b", code: 2,
			line: `invalid value "http://a:1/b" for flag -listen-peer-urls: URL must not contain a path: http://a:1/b`},
		{args: "--cors=", code: 2,
			line: `invalid value "" for flag -cors: URL scheme must be http, https, unix, or unixs: `},
		{args: "--cors=http://a.com", code: 2,
			line: `invalid value "http://a.com" for flag -cors: URL address does not have the form "host:port": http://a.com`},
		{args: "--initial-cluster-state=foo", code: 2,
			line: `invalid value "foo" for flag -initial-cluster-state: invalid value`},
		{args: "--discovery-fallback=foo", code: 2,
			line: `invalid value "foo" for flag -discovery-fallback: invalid value`},
		{args: "--v2-deprecation=not-yet", code: 2,
			line: `invalid value "not-yet" for flag -v2-deprecation: invalid value "not-yet"`},
		{args: "--feature-gates Foo=true", code: 2,
			line: `invalid value "Foo=true" for flag -feature-gates: unrecognized feature gate: Foo`},
		{args: "--feature-gates CompactHashCheck", code: 2,
			line: `invalid value "CompactHashCheck" for flag -feature-gates: missing bool value for CompactHashCheck`},
		{args: "--feature-gates CompactHashCheck=maybe", code: 2, line: `invalid value "CompactHashCheck=maybe" for flag ` +
			`-feature-gates: invalid value of CompactHashCheck=maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax`},
		{args: "--discovery http://x", code: 2, line: "flag provided but not defined: -discovery"},
		{args: "--experimental-max-learners 2", code: 2, line: "flag provided but not defined: -experimental-max-learners"},
		{args: "--log-level=trace", code: 2, line: `panic: unrecognized level: "trace"`},

		{args: "--pre-vote false", code: verify, err: `"false" is not a valid flag`},
		{args: "--config foo", code: verify, err: `"foo" is not a valid flag`},
		{args: "version", code: verify, err: `"version" is not a valid flag`},
		{args: "--heartbeat-interval=0", code: verify, err: "--heartbeat-interval must be >0 (set to 0ms)"},
		{args: "--election-timeout=0", code: verify, err: "--election-timeout must be >0 (set to 0ms)"},
		{args: "--election-timeout 400", code: verify,
			err: "--election-timeout[400ms] should be at least as 5 times as --heartbeat-interval[100ms]"},
		{args: "--election-timeout=50001", code: verify,
			err: "--election-timeout[50001ms] is too long, and should be set less than 50000ms"},
		{args: "--auto-compaction-mode=foo", code: verify, err: `unknown auto-compaction-mode "foo"`},
		{args: "--auto-compaction-mode=", code: verify, err: "undefined auto-compaction-mode"},
		{args: "--compact-hash-check-time 0s", code: verify, err: "--compact-hash-check-time must be >0 (set to 0s)"},
		{args: "--logger=foo", code: verify, err: `unknown logger option "foo"`},
		{args: "--logger=capnslog", code: verify, err: "--logger=capnslog is removed in v3.5"},
		{args: "--log-format=text", code: verify, err: "unknown log format: text, supported values json, console"},
		{args: "--log-outputs default,stderr", code: verify, err: `multi logoutput for "default" is not supported yet`},
		{args: "--enable-log-rotation", code: verify,
			err: "--log-outputs requires a single file path when --log-rotate-config-json is defined"},
		{args: "--enable-log-rotation --log-outputs /nodir/x --log-rotation-config-json foo", code: verify, err: "improperly " +
			"formatted log rotation config: invalid character 'o' in literal false (expecting 'a')"},
		{args: `--enable-log-rotation --log-outputs /nodir/x --log-rotation-config-json {"maxsize":"a"}`, code: verify,
			err: "invalid log rotation config: json: cannot unmarshal string into Go struct field " +
				"X of type int"},
		{args: "--tls-min-version x", code: verify,
			err: `unexpected TLS version "x" (must be one of: TLS1.2, TLS1.3)`},
		{args: "--tls-min-version TLS1.3 --tls-max-version TLS1.2", code: verify,
			err: "min version (TLS1.3) is greater than max version (TLS1.2)"},
		{args: "--tls-min-version TLS1.3 --cipher-suites TLS_AES_128_GCM_SHA256", code: verify,
			err: "cipher suites cannot be configured when only TLS1.3 is enabled"},
		{args: "--discovery-fallback proxy", code: verify,
			err: `v2 proxy is deprecated, and --discovery-fallback can't be configured as "proxy"`},
		{args: "--discovery-token x", code: verify, err: "both --discovery-token and --discovery-endpoints must be set"},
		{args: "--discovery-endpoints a,,b --discovery-token x", code: verify,
			err: "--discovery-endpoints must not contain empty endpoints"},
		{args: "--discovery-srv x --initial-cluster a=http://a:1", code: verify, err: "multiple discovery or bootstrap " +
			`flags are set. Choose one of "initial-cluster", "discovery-endpoints" or "discovery-srv"`},
		{args: "--enable-distributed-tracing --distributed-tracing-sampling-rate 2000000", code: verify,
			err: "distributed tracing configurition is not valid: (tracing sampling rate must be less than 1000000)"},
		{args: "--enable-distributed-tracing --distributed-tracing-sampling-rate -1", code: verify,
			err: "distributed tracing configurition is not valid: (tracing sampling rate must be positive)"},
		{args: "--feature-gates LeaseCheckpointPersist=true", code: verify,
			err: "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint"},
		{args: "--listen-client-urls http://foo:1 --advertise-client-urls http://foo:1", code: verify,
			err: "expected IP in URL for binding (http://foo:1)"},
		{args: "--listen-client-urls http://127.0.0.1:1", code: verify, err: errAdvertiseUnset.Error()},
		{args: "--listen-client-urls=", code: verify, err: errAdvertiseUnset.Error()},
		{args: "--advertise-client-urls http://:2379", code: verify, err: `--advertise-client-urls "http://:2379" must be ` +
			`in the format "host:port", "unix:/path/to/socket" or "unixs:/path/to/socket" (unexpected empty host (http://:2379))`},
		{args: "--initial-advertise-peer-urls http://:2380", code: verify,
			err: `--initial-advertise-peer-urls "http://:2380" must be "host:port" (unexpected empty host (http://:2380))`},

		{env: []string{"ETCD_HEARTBEAT_INTERVAL=xx"}, code: verify,
			err: `invalid value "xx" for ETCD_HEARTBEAT_INTERVAL: parse error`},
		{env: []string{"ETCD_PRE_VOTE=maybe"}, code: verify, err: `invalid value "maybe" for ETCD_PRE_VOTE: parse error`},
		{env: []string{"ETCD_NAME=a"}, args: "--name b", code: 1, err: "ETCD_NAME"},
		{env: []string{"ETCD_NAME="}, args: "--name b", code: 1, err: "ETCD_NAME"},
		{env: []string{"ETCD_CONFIG_FILE=/missing"}, code: verify, err: "open /missing: no such file or directory"},
		{args: "--config-file /missing --listen-peer-urls http://localhost:1", code: verify,
			err: "open /missing: no such file or directory"},

		{file: "heartbeat-interval: 0", code: verify, err: "--heartbeat-interval must be >0 (set to 0ms)"},
		{file: "initial-cluster-state: foo", code: verify, err: `unexpected clusterState "foo"`},
		{file: "log-outputs: stderr", code: verify, err: "error unmarshaling JSON: while decoding JSON: json: cannot " +
			"unmarshal string into Go struct field X of type []string"},
		{file: "listen-client-urls: foo", code: 1,
			line: "unexpected error setting up listen-client-urls: URL scheme must be http, https, unix, or unixs: foo"},
		{file: "advertise-client-urls: foo", code: 1,
			line: "unexpected error setting up advertise-peer-urls: URL scheme must be http, https, unix, or unixs: foo"},
		{file: "feature-gates: Foo=true", code: verify, err: "unrecognized feature gate: Foo"},

		{args: "--cipher-suites BOGUS", code: 1, err: `unexpected TLS cipher suite "BOGUS"`},
		{args: "--listen-metrics-urls https://127.0.0.1:0", code: 1,
			err: "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url"},
		{args: "--listen-client-urls https://127.0.0.1:0 --advertise-client-urls https://127.0.0.1:0", code: 1,
			err: "TLS key/cert (--cert-file, --key-file) must be provided for client url https://127.0.0.1:0 with HTTPS scheme"},
		{args: "--listen-client-http-urls http://localhost:2379", code: 1, err: "cannot bind both --listen-client-urls and " +
			"--listen-client-http-urls on the same url http://localhost:2379"},
		{args: "--auth-token foo", code: 1, err: "auth: invalid auth options"},
		{args: "--auto-compaction-retention=abc", code: 1,
			err: `error parsing CompactionRetention: time: invalid duration "abc"`},
		{args: "--auto-compaction-retention=-1", code: 1,
			err: `error parsing CompactionRetention: time: missing unit in duration "-1"`},
		{args: "--auto-compaction-retention=0.5", code: 1,
			err: `error parsing CompactionRetention: time: missing unit in duration "0.5"`},
		{args: "--initial-cluster default=foo", code: 1,
			err: "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: foo"},
		{args: "--initial-cluster foo", code: 1,
			err: "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: "},

		{own: true, args: "--force-new-cluster", code: 1, err: "--force-new-cluster is not supported by this version of Sluice"},
		{own: true, args: "--enable-distributed-tracing", code: 1,
			err: "--enable-distributed-tracing is not supported by this version of Sluice"},
		{own: true, args: "--auth-token jwt,pub-key=x", code: 1, err: "--auth-token=jwt is not supported by this version of Sluice"},
		{own: true, args: "--auth-token=", code: 1, err: "an empty --auth-token is not supported by this version of Sluice"},
		{own: true, args: "--mailbox-apply -1", code: 1, err: "--mailbox-apply must be >=0 (set to -1)"},
		{own: true, args: "--revoke-rate 0", code: 1, err: "--revoke-rate must be >0 (set to 0)"},
	}
}

func (s start) name() string { return strings.Join(append(slices.Clone(s.env), s.args, s.file), " ") }

func (s start) input(program string) Input {
	args := append([]string{program}, strings.Fields(s.args)...)
	if s.file != "" {
		args = append(args, "--config-file=config.yaml")
	}
	return Input{Args: args, Environ: s.env, ReadFile: func(path string) ([]byte, error) {
		if s.file != "" && path == "config.yaml" {
			return []byte(s.file), nil
		}
		return os.ReadFile(path)
	}}
}

// ending is how a start ended, reduced to what scripts look at.
type ending struct {
	code      int
	line, err string
}

// structField is where Go's JSON errors name the struct that is decoded into; ours has another name.
var structField = regexp.MustCompile(`Go struct field \S+`)

func ends(t *testing.T, s start) (e ending) {
	t.Helper()
	out := Parse(s.input("etcd"))
	if out.Config != nil {
		if err := out.Config.Prepare(); err != nil {
			return ending{code: 1, err: err.Error()}
		}
		t.Fatal("it would start")
	}
	line, _, _ := strings.Cut(out.Stderr, "\n")
	e = ending{code: out.ExitCode, line: line}
	defer func() { e.err = structField.ReplaceAllString(e.err, "Go struct field X") }()
	for _, n := range out.Notices {
		for _, f := range n.Fields {
			if err, ok := f.Interface.(error); ok && f.Key == "error" {
				e.err = err.Error()
			}
			if n.Level == zapcore.FatalLevel && f.Key == "environment-variable" {
				e.err = f.String
			}
		}
	}
	return e
}

func TestStartsThatEndAtOnce(t *testing.T) {
	for _, s := range starts() {
		t.Run(s.name(), func(t *testing.T) {
			got := ends(t, s)
			if want := (ending{s.code, s.line, s.err}); got != want {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

// TestStartsAsEtcd runs the same starts on etcd, to keep the table honest.
func TestStartsAsEtcd(t *testing.T) {
	etcd := os.Getenv("SLUICE_ETCD")
	if etcd == "" {
		t.Skip("SLUICE_ETCD does not name an etcd 3.7 binary: the golden texts of the table stand alone")
	}
	for _, s := range starts() {
		if s.own {
			continue
		}
		t.Run(s.name(), func(t *testing.T) {
			dir := t.TempDir()
			args := s.input(etcd).Args[1:]
			if s.file == "" && !strings.Contains(s.args, "listen-peer-urls") {
				args = append([]string{"--listen-peer-urls=http://127.0.0.1:0"}, args...)
			}
			if s.file != "" {
				if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(s.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), etcd, args...)
			cmd.Dir, cmd.Env = dir, append([]string{"PATH=" + os.Getenv("PATH")}, s.env...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
			err := cmd.Run()
			timer.Stop()
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("run: %v", err)
			}
			if got, want := etcdEnding(exit.ExitCode(), stderr.String()), (ending{s.code, s.line, s.err}); got != want {
				t.Errorf("\netcd %+v\nwant %+v", got, want)
			}
		})
	}
}

func etcdEnding(code int, stderr string) ending {
	e := ending{code: code}
	for i, line := range strings.Split(stderr, "\n") {
		var entry struct {
			Level, Msg, Error string
			Variable          string `json:"environment-variable"`
		}
		if json.Unmarshal([]byte(line), &entry) != nil {
			if i == 0 || strings.HasPrefix(line, "unexpected error setting up") {
				e.line = line
			}
			continue
		}
		switch {
		case entry.Msg == "failed to verify flags", entry.Level == "fatal" && entry.Error != "":
			e.err = structField.ReplaceAllString(entry.Error, "Go struct field X")
		case entry.Level == "fatal":
			e.err = entry.Variable
		}
	}
	return e
}
