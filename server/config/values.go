package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// errParse is what the standard flag package says about a number that is none; our own number types say
// the same, as etcd's do.
var errParse = errors.New("parse error")

// unitValue is a number of units that is kept as a duration: milliseconds, seconds.
type unitValue struct {
	d    *time.Duration
	unit time.Duration
}

func (v unitValue) String() string {
	if v.d == nil {
		return ""
	}
	return strconv.FormatInt(int64(*v.d/v.unit), 10)
}

func (v unitValue) Set(text string) error {
	n, err := strconv.ParseUint(text, 0, strconv.IntSize)
	if err != nil {
		return numberError(err)
	}
	if n > uint64(1<<63-1)/uint64(v.unit) {
		return errors.New("value out of range")
	}
	*v.d = time.Duration(n) * v.unit
	return nil
}

func numberError(err error) error {
	if errors.Is(err, strconv.ErrRange) {
		return errors.New("value out of range")
	}
	return errParse
}

// uint32Value passes strconv's own error on, as etcd does for --max-concurrent-streams.
type uint32Value struct{ n *uint32 }

func (v uint32Value) String() string {
	if v.n == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*v.n), 10)
}

func (v uint32Value) Set(text string) error {
	n, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return err
	}
	*v.n = uint32(n)
	return nil
}

// urlsValue is a comma-separated list of URLs; the empty text leaves what was there, as in etcd.
type urlsValue struct{ urls *URLs }

func (v urlsValue) String() string {
	if v.urls == nil {
		return ""
	}
	return v.urls.String()
}

func (v urlsValue) Set(text string) error {
	if text == "" {
		return nil
	}
	urls, err := ParseURLs(strings.Split(text, ","))
	if err != nil {
		return err
	}
	*v.urls = urls
	return nil
}

// originsValue is a set of URLs or "*". Each needs a scheme and a port, and the empty text is an error,
// whatever etcd's help says.
type originsValue struct{ set *[]string }

func (v originsValue) String() string {
	if v.set == nil {
		return ""
	}
	return strings.Join(*v.set, ",")
}

func (v originsValue) Set(text string) error {
	if text == "*" {
		*v.set = []string{"*"}
		return nil
	}
	var set []string
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		u, err := url.Parse(part)
		if err != nil {
			return err
		}
		if u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" && u.Scheme != "unixs" {
			return fmt.Errorf("URL scheme must be http, https, unix, or unixs: %s", part)
		}
		if _, _, err := net.SplitHostPort(u.Host); err != nil {
			return fmt.Errorf(`URL address does not have the form "host:port": %s`, part)
		}
		if u.Path != "" {
			return fmt.Errorf("URL must not contain a path: %s", part)
		}
		set = append(set, u.String())
	}
	slices.Sort(set)
	*v.set = slices.Compact(set)
	return nil
}

// listValue is a comma-separated list of texts; the empty text is a list of one empty text, as in etcd.
type listValue struct {
	list   *[]string
	unique bool // sorted, without duplicates
}

func (v listValue) String() string {
	if v.list == nil {
		return ""
	}
	return strings.Join(*v.list, ",")
}

func (v listValue) Set(text string) error {
	list := strings.Split(text, ",")
	if v.unique {
		slices.Sort(list)
		list = slices.Compact(list)
	}
	*v.list = list
	return nil
}

// enumValue accepts the listed texts only.
type enumValue struct {
	text    *string
	allowed []string
	quote   bool // the error names the value once more, as --v2-deprecation's does
}

func (v enumValue) String() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}

func (v enumValue) Set(text string) error {
	if !slices.Contains(v.allowed, text) {
		if v.quote {
			return fmt.Errorf("invalid value %q", text)
		}
		return errors.New("invalid value")
	}
	*v.text = text
	return nil
}

type gatesValue struct{ gates *FeatureGates }

func (v gatesValue) String() string {
	if v.gates == nil {
		return ""
	}
	return v.gates.String()
}

func (v gatesValue) Set(text string) error {
	gates, err := parseGates(text)
	if err != nil {
		return err
	}
	*v.gates = gates
	return nil
}

// ignoredValue belongs to the flags that etcd once had: any value is taken, none has an effect. They parse
// as booleans, so "--config foo" leaves foo as a positional argument.
type ignoredValue struct{}

func (ignoredValue) String() string   { return "" }
func (ignoredValue) Set(string) error { return nil }
func (ignoredValue) IsBoolFlag() bool { return true }
