package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// URLs is a list of listen or advertise addresses, sorted by their text as etcd keeps them.
type URLs []url.URL

// String joins the URLs with commas.
func (u URLs) String() string { return strings.Join(u.Strings(), ",") }

// Strings returns the text of each URL.
func (u URLs) Strings() []string {
	out := make([]string, len(u))
	for i := range u {
		out[i] = u[i].String()
	}
	return out
}

// ParseURLs reads URLs under etcd's rules: a known scheme; host:port and no path for http and https.
func ParseURLs(texts []string) (URLs, error) {
	if len(texts) == 0 {
		return nil, errors.New("no valid URLs given")
	}
	urls := make(URLs, 0, len(texts))
	for _, text := range texts {
		text = strings.TrimSpace(text)
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		switch u.Scheme {
		case "http", "https":
			if _, _, err := net.SplitHostPort(u.Host); err != nil {
				return nil, fmt.Errorf(`URL address does not have the form "host:port": %s`, text)
			}
			if u.Path != "" {
				return nil, fmt.Errorf("URL must not contain a path: %s", text)
			}
		case "unix", "unixs":
		default:
			return nil, fmt.Errorf("URL scheme must be http, https, unix, or unixs: %s", text)
		}
		urls = append(urls, *u)
	}
	slices.SortFunc(urls, func(a, b url.URL) int { return strings.Compare(a.String(), b.String()) })
	return urls, nil
}

func mustURLs(text string) URLs {
	urls, err := ParseURLs(strings.Split(text, ","))
	if err != nil {
		panic(err)
	}
	return urls
}

// Secure reports whether a listener at u speaks TLS.
func Secure(u url.URL) bool { return u.Scheme == "https" || u.Scheme == "unixs" }

// Unix reports whether u is a unix socket, and its path: unix:///abs/path or unix://rel:port.
func Unix(u url.URL) (path string, ok bool) {
	if u.Scheme != "unix" && u.Scheme != "unixs" {
		return "", false
	}
	return u.Host + u.Path, true
}

// InitialPeers parses --initial-cluster into the peer URLs of each name.
func (c *Config) InitialPeers() (map[string]URLs, error) { return parseCluster(c.InitialCluster) }

// parseCluster reads "name=url,name=url"; a name may come several times. A comma inside a URL is not
// possible, a '=' is, so names end at the first '='.
func parseCluster(text string) (map[string]URLs, error) {
	texts := make(map[string][]string)
	for _, pair := range strings.Split(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, u, _ := strings.Cut(pair, "=") // without a URL, ParseURLs says what is missing
		texts[name] = append(texts[name], u)
	}
	peers := make(map[string]URLs, len(texts))
	for name, list := range texts {
		urls, err := ParseURLs(list)
		if err != nil {
			return nil, err
		}
		peers[name] = urls
	}
	return peers, nil
}
