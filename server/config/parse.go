package config

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Input is what Parse looks at.
type Input struct {
	Args        []string                          // the program's name first, as os.Args
	Environ     []string                          // NAME=VALUE, as os.Environ
	ReadFile    func(path string) ([]byte, error) // for --config-file
	DefaultHost func() (string, error)            // address of the interface of the default route
}

// Notice is a log line of the start-up that precedes the configured logger.
type Notice struct {
	Level   zapcore.Level
	Message string
	Fields  []zap.Field
}

// Outcome is what Parse decided: either Config, or the end of the process with ExitCode. Whoever parses
// prints Stdout and Stderr, then logs Notices in order.
type Outcome struct {
	Config         *Config // nil: the process ends with ExitCode
	ExitCode       int
	Stdout, Stderr string
	Notices        []Notice
}

func (o *Outcome) note(level zapcore.Level, message string, fields ...zap.Field) {
	o.Notices = append(o.Notices, Notice{level, message, fields})
}

// Parse reads the command line, then either the configuration file alone or the environment for what the
// command line did not set, and checks the result.
//
// Rule: contract/operations.md 1.1 and 1.2.
func Parse(in Input) Outcome {
	c, version := Default(), false
	fs := flagSet(c, &version)
	if err := fs.Parse(in.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return Outcome{Stdout: flagsHelp(), Stderr: usage + "\n"}
		}
		return Outcome{ExitCode: 2, Stderr: err.Error() + "\n" + usage + "\n"}
	}
	if version {
		return Outcome{Stdout: versionText()}
	}
	out := Outcome{}
	err := out.fill(in, fs, c)
	if out.ExitCode != 0 {
		return out
	}
	out.note(zap.InfoLevel, "Running: ", zap.Strings("args", in.Args))
	if err != nil {
		out.note(zap.WarnLevel, "failed to verify flags", zap.Error(err))
		if errors.Is(err, errAdvertiseUnset) {
			out.note(zap.WarnLevel, "advertise client URLs are not set", zap.Error(err))
		}
		out.ExitCode = 1
		return out
	}
	out.defaultHost(in, c)
	out.Config = c
	return out
}

// fill merges the sources into c and checks it.
func (o *Outcome) fill(in Input, fs *flag.FlagSet, c *Config) error {
	if fs.NArg() != 0 {
		return fmt.Errorf("%q is not a valid flag", fs.Arg(0))
	}
	env := environment(in.Environ)
	if c.ConfigFile == "" {
		c.ConfigFile = env["ETCD_CONFIG_FILE"]
	}
	explicit := map[string]bool{}
	if c.ConfigFile != "" {
		path := c.ConfigFile
		text, err := in.ReadFile(path)
		if err != nil {
			return err
		}
		*c = *Default()
		c.ConfigFile = path
		err = c.fromFile(text, explicit)
		var listen *fileURLError
		if errors.As(err, &listen) {
			o.ExitCode, o.Stderr = 1, listen.Error()+"\n"
			return err
		}
		if err != nil {
			return err
		}
		o.note(zap.InfoLevel, "loaded server configuration, other configuration command line flags and "+
			"environment variables will be ignored if provided", zap.String("path", path))
	} else {
		if err := o.fromEnvironment(in.Environ, fs); err != nil || o.ExitCode != 0 {
			return err
		}
		fs.Visit(func(f *flag.Flag) { explicit[f.Name] = true })
		if c.Name != DefaultName && c.InitialCluster == Default().InitialCluster {
			c.InitialCluster = clusterOf(c.Name, c.AdvertisePeerURLs)
		}
	}
	return o.check(c, explicit)
}

// environment maps the ETCD_ variables that are not empty.
func environment(environ []string) map[string]string {
	env := make(map[string]string)
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "ETCD_") {
			env[name] = value
		}
	}
	return env
}

// EnvName is the environment variable of a flag.
func EnvName(flagName string) string {
	return "ETCD_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// fromEnvironment sets the flags that the command line left, in order of name. A variable of a flag that
// the command line set ends the process, even an empty one: nobody should have to guess which one wins.
func (o *Outcome) fromEnvironment(environ []string, fs *flag.FlagSet) error {
	env := environment(environ)
	if value, ok := env["ETCD_VERSION"]; ok {
		o.note(zap.WarnLevel, "cannot set special environment variable",
			zap.String("key", "ETCD_VERSION"), zap.String("value", value))
		delete(env, "ETCD_VERSION")
	}
	given, used := map[string]bool{}, map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[EnvName(f.Name)] = true })
	var err error
	fs.VisitAll(func(f *flag.Flag) {
		name := EnvName(f.Name)
		value, ok := env[name]
		if given[name] || !ok || value == "" {
			return
		}
		if setErr := fs.Set(f.Name, value); setErr != nil {
			if err == nil {
				err = fmt.Errorf("invalid value %q for %s: %w", value, name, setErr)
			}
			return
		}
		used[name] = true
		o.note(zap.InfoLevel, "recognized and used environment variable",
			zap.String("variable-name", name), zap.String("variable-value", value))
	})
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		_, known := env[name]
		switch {
		case !known || used[name]:
		case given[name]:
			o.note(zap.FatalLevel, "conflicting environment variable is shadowed by corresponding "+
				"command-line flag (either unset environment variable or disable flag))",
				zap.String("environment-variable", name))
			o.ExitCode = 1
			return nil
		default:
			o.note(zap.WarnLevel, "unrecognized environment variable", zap.String("environment-variable", pair))
		}
	}
	return err
}

// clusterOf is the initial cluster of one member: name=url for each of its URLs.
func clusterOf(name string, urls URLs) string {
	pairs := make([]string, 0, len(urls))
	for _, u := range urls.Strings() {
		pairs = append(pairs, name+"="+u)
	}
	return strings.Join(pairs, ",")
}

// defaultHost replaces the host of an advertised URL that still has its default text while the member
// listens on all addresses: others could not reach "localhost".
func (o *Outcome) defaultHost(in Input, c *Config) {
	all := func(listen URLs) bool { return len(listen) > 0 && listen[0].Hostname() == "0.0.0.0" }
	peer := c.AdvertisePeerURLs.String() == DefaultListenPeerURLs && all(c.ListenPeerURLs)
	client := c.AdvertiseClientURLs.String() == DefaultListenClientURLs && all(c.ListenClientURLs)
	if !peer && !client || in.DefaultHost == nil {
		return
	}
	host, err := in.DefaultHost()
	if err != nil {
		o.note(zap.InfoLevel, "failed to detect default host", zap.Error(err))
		return
	}
	replace := func(advertise, listen URLs) URLs {
		out := slices.Clone(advertise)
		out[0].Host = net.JoinHostPort(host, listen[0].Port())
		return out
	}
	if peer {
		derived := c.Name != DefaultName && !c.explicitCluster
		c.AdvertisePeerURLs = replace(c.AdvertisePeerURLs, c.ListenPeerURLs)
		if derived {
			c.InitialCluster = clusterOf(c.Name, c.AdvertisePeerURLs)
		}
	}
	if client {
		c.AdvertiseClientURLs = replace(c.AdvertiseClientURLs, c.ListenClientURLs)
	}
	o.note(zap.InfoLevel, "detected default host for advertise", zap.String("host", host))
}

// Version is the release whose behaviour this server has, and Own is Sluice's own.
const (
	Version = "3.7.3"
	Own     = "0.1.0"
)

// GitSHA is what stands where etcd shows the commit that it was built from: scripts read exactly four
// lines, the first of which must stay as it is, so Sluice names itself in the second.
const GitSHA = "sluice-" + Own

func versionText() string {
	return fmt.Sprintf("etcd Version: %s\nGit SHA: %s\nGo Version: %s\nGo OS/Arch: %s/%s\n",
		Version, GitSHA, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
