package workload

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"sluice/bench/lean"
	"sluice/bench/process"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Security is how clients reach a member.
type Security int

// Plain text; TLS 1.3 with a server certificate; and with client certificates too.
const (
	Plain Security = iota
	TLS
	MutualTLS
)

func (s Security) String() string { return [...]string{"plain", "TLS", "mTLS"}[s] }

// Program is a daemon to be measured.
type Program struct {
	Name  string // in tables
	Path  string
	Flags []string
	Env   []string
}

// Member is a running daemon of one kind, alone in its cluster.
type Member struct {
	Name   string
	daemon *process.Daemon
	dir    string
	fill   func(ctx context.Context, m *Member) error
}

// Start runs a fresh member below dir and fills it.
func Start(
	ctx context.Context, p Program, dir string, s Security, fill func(ctx context.Context, m *Member) error,
) (*Member, error) {
	dir, err := os.MkdirTemp(dir, p.Name+"-")
	if err != nil {
		return nil, fmt.Errorf("make a data directory: %w", err)
	}
	m := &Member{Name: p.Name, dir: dir, fill: fill}
	flags := p.Flags
	var config *tls.Config
	if s != Plain {
		var more []string
		if config, more, err = certify(filepath.Join(dir, "certificates"), s); err != nil {
			return nil, err
		}
		flags = append(append([]string{}, flags...), more...)
	}
	if m.daemon, err = process.New(p.Path, dir, flags...); err != nil {
		return nil, err
	}
	m.daemon.Env, m.daemon.TLS = p.Env, config
	if s != Plain {
		m.daemon.Client = strings.Replace(m.daemon.Client, "http:", "https:", 1)
	}
	for _, f := range flags {
		if pages, ok := strings.CutPrefix(f, "--listen-client-http-urls="); ok {
			m.daemon.Pages = pages
		}
	}
	if err := m.begin(ctx); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Member) begin(ctx context.Context) error {
	if err := m.daemon.Start(ctx); err != nil {
		return err
	}
	if m.fill == nil {
		return nil
	}
	if err := m.fill(ctx, m); err != nil {
		return fmt.Errorf("fill %s: %w", m.Name, err)
	}
	return nil
}

// Reset starts the member anew, without data but what fill writes.
func (m *Member) Reset(ctx context.Context) error {
	m.daemon.Kill()
	if err := os.RemoveAll(m.daemon.Dir); err != nil {
		return fmt.Errorf("reset %s: %w", m.Name, err)
	}
	return m.begin(ctx)
}

// Close kills the member and removes its data.
func (m *Member) Close() {
	m.daemon.Kill()
	os.RemoveAll(m.dir)
}

// DatabaseBytes is the size of the member's database file.
func (m *Member) DatabaseBytes() int64 {
	info, err := os.Stat(filepath.Join(m.daemon.Dir, "member", "snap", "db"))
	if err != nil {
		return 0
	}
	return info.Size()
}

func (m *Member) address() (string, error) {
	u, err := url.Parse(m.daemon.Client)
	if err != nil {
		return "", fmt.Errorf("address of %s: %w", m.Name, err)
	}
	return u.Host, nil
}

// lean opens n lean connections.
func (m *Member) lean(ctx context.Context, n int, h lean.Handler) ([]*lean.Conn, error) {
	address, err := m.address()
	if err != nil {
		return nil, err
	}
	var conns []*lean.Conn
	for range n {
		c, err := lean.Dial(ctx, address, m.daemon.TLS, h)
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

// stock opens n connections of the stock client.
func (m *Member) stock(n int) ([]*clientv3.Client, error) {
	var clients []*clientv3.Client
	for range n {
		c, err := m.daemon.Connect()
		if err != nil {
			closeAll(clients)
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

func closeAll[C interface{ Close() error }](all []C) {
	for _, c := range all {
		_ = c.Close() // nothing is left to be said over it
	}
}
