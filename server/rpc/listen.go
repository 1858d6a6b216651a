package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// ListenConfig names the addresses on which clients are served.
type ListenConfig struct {
	// Client are the --listen-client-urls: gRPC, and HTTP too unless HTTP names addresses of its own.
	Client []url.URL
	// HTTP are the --listen-client-http-urls.
	HTTP []url.URL
	// TLS is for the schemes https and unixs, see ServerTLS.
	TLS                     *tls.Config
	ReusePort, ReuseAddress bool // --socket-reuse-port, --socket-reuse-address
}

// traffic is what is served on one address in one form, plaintext or TLS.
type traffic struct{ grpc, http bool }

func (t traffic) any() bool { return t.grpc || t.http }

// String is the text of the log field traffic.
func (t traffic) String() string {
	switch {
	case t.grpc && t.http:
		return "grpc+http"
	case t.grpc:
		return "grpc"
	}
	return "http"
}

// Endpoint is one bound address. Connections queue in it until it is served.
type Endpoint struct {
	listener      net.Listener
	tls           *tls.Config // nil in plaintext
	plain, secure traffic
}

// Addr is where the endpoint listens.
func (e *Endpoint) Addr() net.Addr { return e.listener.Addr() }

// Close gives the address up. An endpoint that is served is closed by the Server.
func (e *Endpoint) Close() error { return e.listener.Close() }

// Listen binds all addresses. One that is named with both http and https is bound once, and the first byte
// of a connection tells them apart.
func Listen(ctx context.Context, cfg ListenConfig) (endpoints []*Endpoint, err error) {
	defer func() {
		if err != nil {
			for _, e := range endpoints {
				e.Close()
			}
			endpoints = nil
		}
	}()
	byAddress := make(map[string]*Endpoint)
	add := func(u url.URL, t traffic) error {
		network, address, secure, err := addressOf(u)
		if err != nil {
			return err
		}
		if secure && cfg.TLS == nil {
			return fmt.Errorf(
				"TLS key/cert (--cert-file, --key-file) must be provided for client url %s with HTTPS scheme", u.String())
		}
		e := byAddress[network+"://"+address]
		if e == nil {
			l, err := cfg.bind(ctx, network, address)
			if err != nil {
				return err
			}
			e = &Endpoint{listener: l}
			if cfg.TLS != nil {
				e.tls = e.helloConfig(cfg.TLS)
			}
			byAddress[network+"://"+address] = e
			endpoints = append(endpoints, e)
		}
		form := &e.plain
		if secure {
			form = &e.secure
		}
		form.grpc, form.http = form.grpc || t.grpc, form.http || t.http
		return nil
	}
	for _, u := range cfg.Client {
		if err := add(u, traffic{grpc: true, http: len(cfg.HTTP) == 0}); err != nil {
			return endpoints, err
		}
	}
	for _, u := range cfg.HTTP {
		if err := add(u, traffic{http: true}); err != nil {
			return endpoints, err
		}
	}
	return endpoints, nil
}

// helloConfig is base, with the protocols that the client at hand may speak: one that offers only h2, as gRPC
// clients do, is not offered http/1.1, and the connection remembers which it was.
func (e *Endpoint) helloConfig(base *tls.Config) *tls.Config {
	outer, onlyH2 := base.Clone(), base.Clone()
	onlyH2.NextProtos = []string{"h2"}
	outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := hello.Conn.(*clientConn)
		c.offersHTTP1 = len(hello.SupportedProtos) == 0 || slices.Contains(hello.SupportedProtos, "http/1.1")
		if e.secure.grpc && (!e.secure.http || !c.offersHTTP1) {
			return onlyH2, nil
		}
		return base, nil
	}
	return outer
}

func addressOf(u url.URL) (network, address string, secure bool, err error) {
	switch u.Scheme {
	case "http":
		return "tcp", u.Host, false, nil
	case "https":
		return "tcp", u.Host, true, nil
	case "unix":
		return "unix", u.Host + u.Path, false, nil
	case "unixs":
		return "unix", u.Host + u.Path, true, nil
	}
	return "", "", false, fmt.Errorf("listen on %s: unknown scheme %q", u.String(), u.Scheme)
}

// bind opens the socket. The file of a unix socket whose process was killed is in the way, and removed.
func (cfg *ListenConfig) bind(ctx context.Context, network, address string) (net.Listener, error) {
	if network == "unix" {
		if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove stale socket %s: %w", address, err)
		}
	}
	lc := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) (err error) {
		if network == "unix" || !cfg.ReusePort && !cfg.ReuseAddress {
			return nil
		}
		ctrl := c.Control(func(fd uintptr) { err = cfg.socketOptions(int(fd)) })
		return errors.Join(ctrl, err)
	}}
	return lc.Listen(ctx, network, address)
}

func (cfg *ListenConfig) socketOptions(fd int) error {
	if cfg.ReuseAddress {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fmt.Errorf("set SO_REUSEADDR: %w", err)
		}
	}
	if cfg.ReusePort {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("set SO_REUSEPORT: %w", err)
		}
	}
	return nil
}

// errListenerClosed is what Accept returns after Close. Its kind is what grpc and net/http look for.
var errListenerClosed = fmt.Errorf("rpc: %w", net.ErrClosed)

// handover is a listener for connections that another one has accepted: how a server gets those that are its.
type handover struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
}

func newHandover(addr net.Addr) *handover {
	return &handover{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// give hands c over. False: the server accepts no more, and c is closed.
func (h *handover) give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.done:
		c.Close()
		return false
	}
}

// Accept waits for the next connection.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, errListenerClosed
	}
}

// Close ends Accept. It is called once, by the server that the listener belongs to.
func (h *handover) Close() error {
	select {
	case <-h.done:
	default:
		close(h.done)
	}
	return nil
}

// Addr is the address of the listener that accepted the connections.
func (h *handover) Addr() net.Addr { return h.addr }

// memoryAddr is the address of the local listener.
type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "local" }

// dialMemory connects to a handover from inside the process.
func (h *handover) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case h.conns <- server:
		return client, nil
	case <-h.done:
		return nil, errListenerClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
