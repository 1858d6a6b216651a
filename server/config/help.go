package config

import (
	"fmt"
	"strings"
)

// usage is what every parse error ends with.
const usage = `Usage:

  sluice [flags]
    Start a member.

  sluice --version
    Print the version and exit.

  sluice -h | --help
    Print all flags and exit.

  sluice --config-file
    Path of the configuration file. With it, flags and environment variables are ignored. Durations in
    the file are whole nanoseconds (600000000000 for 10m), heartbeat-interval and election-timeout are
    milliseconds.
`

type helpFlag struct {
	name  string
	shown string // the default as it is shown; empty for switches
	text  string
}

type helpGroup struct {
	title string
	flags []helpFlag
}

// flagsHelp lists every flag by group, in etcd's layout.
func flagsHelp() string {
	var b strings.Builder
	for i, group := range helpGroups() {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s:\n", group.title)
		for _, f := range group.flags {
			fmt.Fprintf(&b, "  --%s", f.name)
			if f.shown != "" {
				fmt.Fprintf(&b, " %s", f.shown)
			}
			fmt.Fprintf(&b, "\n    %s\n", strings.ReplaceAll(f.text, "\n", "\n    "))
		}
	}
	b.WriteString("\nUnsafe flags break the promises of the consensus protocol. Use them with care.\n\n")
	return b.String()
}

func helpGroups() []helpGroup {
	return []helpGroup{
		{"Member", memberHelp()}, {"Clustering", clusterHelp()}, {"Security", securityHelp()},
		{"Auth", []helpFlag{
			{"auth-token", "'simple'", "Kind of the authentication tokens: simple, or empty for none."},
			{"bcrypt-cost", "10", "Cost of hashing a password, 4 to 31."},
			{"auth-token-ttl", "300", "Life of a token in seconds, counted from its last use."},
		}},
		{"Profiling and Monitoring", []helpFlag{
			{"enable-pprof", "'false'", "Serve profiles at the client URL under /debug/pprof/."},
			{"metrics", "'basic'", "Set to 'extensive' to add histograms of gRPC handling times."},
			{"listen-metrics-urls", "''", "More URLs for /metrics, /health, /livez and /readyz. " +
				"https uses the client URL's certificate."},
		}},
		{"Logging", loggingHelp()},
		{"Distributed tracing", []helpFlag{
			{"enable-distributed-tracing", "'false'", "Export traces. Not supported yet."},
			{"distributed-tracing-address", "'localhost:4317'", "Address of the collector."},
			{"distributed-tracing-service-name", "'etcd'", "Name of the service, the same on every member."},
			{"distributed-tracing-instance-id", "''", "Name of this member in traces."},
			{"distributed-tracing-sampling-rate", "'0'", "Sampled requests in a million."},
		}},
		{"Features", featureHelp()}, {"Pipeline", pipelineHelp()},
		{"Unsafe feature", []helpFlag{
			{"force-new-cluster", "'false'", "Make a cluster of one out of a data directory. Not supported yet."},
			{"unsafe-no-fsync", "'false'", "Never flush to disk. A crash loses data."},
		}},
	}
}

func memberHelp() []helpFlag {
	gates := []string{"Switches of the form Name=true,Name=false. Known are:"}
	for _, g := range knownGates() {
		gates = append(gates, fmt.Sprintf("%s=true|false (%s - default=%t)", g.Name, g.Stage, g.Enabled))
	}
	return []helpFlag{
		{"name", "'default'", "Name of this member, for people and for --initial-cluster."},
		{"data-dir", "'${name}.etcd'", "Path of the data directory."},
		{"wal-dir", "''", "Path of a directory of its own for the write-ahead log."},
		{"snapshot-count", "'10000'", "Applied entries between two snapshot files."},
		{"heartbeat-interval", "'100'", "Milliseconds between heartbeats of a leader."},
		{"election-timeout", "'1000'", "Milliseconds without a leader before an election."},
		{"initial-election-tick-advance", "'true'", "Shorten the first election after the start."},
		{"listen-peer-urls", "'http://localhost:2380'", "URLs to listen on for other members."},
		{"listen-client-urls", "'http://localhost:2379'", "URLs to listen on for clients: gRPC, and HTTP unless " +
			"--listen-client-http-urls is given."},
		{"listen-client-http-urls", "''", "URLs to listen on for HTTP clients only."},
		{"max-snapshots", "'5'", "Snapshot files to keep, 0 for all. Deprecated."},
		{"max-wals", "'5'", "Segments of the write-ahead log to keep, 0 for all."},
		{"memory-mlock", "", "Keep the pages of the database in memory."},
		{"quota-backend-bytes", "'0'", "Size of the database at which writes are refused. 0 is 2 GiB, " +
			"a negative one none."},
		{"backend-bbolt-freelist-type", "'map'", "How the database keeps its free pages: map or array."},
		{"backend-batch-interval", "''", "Longest time between two commits of the database."},
		{"backend-batch-limit", "'0'", "Most operations between two commits of the database."},
		{"max-txn-ops", "'128'", "Most operations in a transaction."},
		{"max-request-bytes", "'1572864'", "Largest request of a client in bytes."},
		{"max-concurrent-streams", "'math.MaxUint32'", "Most concurrent streams of a connection."},
		{"grpc-keepalive-min-time", "'5s'", "Shortest time between pings of a client."},
		{"grpc-keepalive-interval", "'2h'", "Time without traffic before a client is pinged, 0 for never."},
		{"grpc-keepalive-timeout", "'20s'", "How long a ping may stay unanswered, 0 for ever."},
		{"socket-reuse-port", "'false'", "Set SO_REUSEPORT on listeners."},
		{"socket-reuse-address", "'false'", "Set SO_REUSEADDR on listeners."},
		{"enable-grpc-gateway", "", "Serve JSON under /v3/. On by default."},
		{"raft-read-timeout", "'5s'", "Read timeout of connections between members."},
		{"raft-write-timeout", "'5s'", "Write timeout of connections between members."},
		{"feature-gates", "''", strings.Join(gates, "\n")},
	}
}

func clusterHelp() []helpFlag {
	return []helpFlag{
		{"initial-advertise-peer-urls", "'http://localhost:2380'", "This member's URLs as other members reach them."},
		{"initial-cluster", "'default=http://localhost:2380'", "The members that found the cluster: name=url,name=url."},
		{"initial-cluster-state", "'new'", "'new' to found a cluster, 'existing' to join one. " +
			"Only read at the first start."},
		{"initial-cluster-token", "'etcd-cluster'", "Sets clusters of equal members apart."},
		{"advertise-client-urls", "'http://localhost:2379'", "This member's URLs as clients reach them."},
		{"discovery-token", "''", "Discovery of members is not supported yet."},
		{"discovery-endpoints", "''", "Endpoints of the discovery service."},
		{"discovery-dial-timeout", "'2s'", "Timeout for connecting to it."},
		{"discovery-request-timeout", "'5s'", "Timeout for its requests."},
		{"discovery-keepalive-time", "'2s'", "Time between its keepalives."},
		{"discovery-keepalive-timeout", "'6s'", "Timeout of its keepalives."},
		{"discovery-insecure-transport", "'true'", "Talk to it without TLS."},
		{"discovery-insecure-skip-tls-verify", "'false'", "Do not verify its certificate."},
		{"discovery-cert", "''", "Client certificate for it."},
		{"discovery-key", "''", "Key of that certificate."},
		{"discovery-cacert", "''", "Authorities that may sign its certificate."},
		{"discovery-user", "''", "User for it."},
		{"discovery-password", "''", "Password of that user."},
		{"discovery-fallback", "'exit'", "Only 'exit'."},
		{"discovery-srv", "''", "Domain whose SRV records list the members. Not supported yet."},
		{"discovery-srv-name", "''", "Suffix of the SRV service name."},
		{"strict-reconfig-check", "'true'", "Refuse changes of membership that could lose the quorum."},
		{"pre-vote", "'true'", "Ask before an election whether it could be won."},
		{"auto-compaction-retention", "'0'", "How much history to keep, 0 for all."},
		{"auto-compaction-mode", "'periodic'", "'periodic': retention is a time (hours without a unit). " +
			"'revision': a number of revisions."},
		{"v2-deprecation", "'write-only'", "Deprecated, without effect."},
	}
}

func securityHelp() []helpFlag {
	return []helpFlag{
		{"cert-file", "''", "Server certificate of the client URLs."},
		{"key-file", "''", "Key of that certificate."},
		{"client-cert-auth", "'false'", "Demand a certificate from clients."},
		{"client-cert-file", "''", "Certificate to use as a client, if not --cert-file."},
		{"client-key-file", "''", "Key of that certificate."},
		{"client-crl-file", "''", "Revoked client certificates, DER."},
		{"client-cert-allowed-hostname", "''", "Names of which a client certificate must have one."},
		{"trusted-ca-file", "''", "Authorities that may sign client certificates."},
		{"auto-tls", "'false'", "Make a certificate for the client URLs."},
		{"peer-cert-file", "''", "Server certificate of the peer URLs."},
		{"peer-key-file", "''", "Key of that certificate."},
		{"peer-client-cert-auth", "'false'", "Demand a certificate from members."},
		{"peer-client-cert-file", "''", "Certificate to use towards members, if not --peer-cert-file."},
		{"peer-client-key-file", "''", "Key of that certificate."},
		{"peer-trusted-ca-file", "''", "Authorities that may sign members' certificates."},
		{"peer-cert-allowed-cn", "''", "Common names of which a member's certificate must have one."},
		{"peer-cert-allowed-hostname", "''", "Names of which a member's certificate must have one."},
		{"peer-auto-tls", "'false'", "Make a certificate for the peer URLs."},
		{"self-signed-cert-validity", "'1'", "Years that a made certificate is valid."},
		{"peer-crl-file", "''", "Revoked certificates of members, DER."},
		{"cipher-suites", "''", "TLS cipher suites to allow, empty for Go's choice."},
		{"cors", "'*'", "Origins, with port, whose pages may use the HTTP API."},
		{"host-whitelist", "'*'", "Host names of plain HTTP requests to serve."},
		{"tls-min-version", "'TLS1.2'", "Lowest TLS version: TLS1.2 or TLS1.3."},
		{"tls-max-version", "''", "Highest TLS version, empty for Go's choice."},
	}
}

func loggingHelp() []helpFlag {
	return []helpFlag{
		{"logger", "'zap'", "Only 'zap'."},
		{"log-outputs", "'default'", "'default' and 'stderr', 'stdout', 'systemd/journal' or paths of files."},
		{"log-level", "'info'", "debug, info, warn, error, panic or fatal."},
		{"log-format", "'json'", "json or console."},
		{"enable-log-rotation", "'false'", "Rotate the one file of --log-outputs."},
		{"log-rotation-config-json", "'" + defaultRotation + "'",
			"When to rotate: megabytes, days, number of old files, local time in their names, gzip."},
		{"warning-unary-request-duration", "'300ms'", "Log requests that take longer."},
	}
}

func featureHelp() []helpFlag {
	return []helpFlag{
		{"corrupt-check-time", "'0s'", "Time between comparisons of the members' data. Not supported yet."},
		{"compact-hash-check-time", "'1m'", "Time between comparisons of the members' compaction hashes."},
		{"compaction-batch-limit", "1000", "Most revisions that one step of a compaction deletes."},
		{"peer-skip-client-san-verification", "'false'", "Do not compare a member's certificate with its address."},
		{"watch-progress-notify-interval", "'10m'", "Time between progress messages of idle watches."},
		{"warning-apply-duration", "'100ms'", "Log entries that take longer to apply."},
		{"bootstrap-defrag-threshold-megabytes", "", "Defragment at the start if this much is free, 0 for never."},
		{"max-learners", "'1'", "Most learners in the cluster."},
		{"compaction-sleep-interval", "", "Pause between steps of a compaction."},
		{"downgrade-check-time", "", "Time between looks at a running downgrade."},
		{"snapshot-catchup-entries", "", "Entries that stay in the log for slow members after a snapshot."},
	}
}

func pipelineHelp() []helpFlag {
	list := make([]helpFlag, 0, 16)
	for _, stage := range []string{
		"propose", "system", "replicate", "persist", "apply", "watch", "expire", "backend",
	} {
		list = append(list, helpFlag{"mailbox-" + stage, "'0'",
			"Messages that may wait for " + stage + ", 0 for its default."})
	}
	return append(list,
		helpFlag{"raft-uncommitted-bytes", "'67108864'", "Bytes appended but not applied at which intake waits."},
		helpFlag{"value-cache-bytes", "'0'", "Bytes of values to keep in memory, 0 for the default."},
		helpFlag{"read-budget-bytes", "'0'", "Bytes of answers being built at one time, 0 for the default."},
		helpFlag{"watch-window-bytes", "'0'", "Bytes of recent events to keep in memory, 0 for the default."},
		helpFlag{"grpc-stream-workers", "'0'", "Goroutines that serve gRPC streams, 0 for the default."},
		helpFlag{"revoke-rate", "'1000'", "Most leases to revoke in a second."},
	)
}
