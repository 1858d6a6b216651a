package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// clientConn is one accepted connection, below TLS. It knows the answers on their way to the client, so that
// their share of the read budget is free as soon as the connection is closed: grpc's writer drops what it has
// queued without freeing it.
type clientConn struct {
	net.Conn
	peeked      []byte               // bytes read to choose a server, which it reads again; Read alone uses it
	offersHTTP1 bool                 // in its ClientHello, or by offering nothing; fixed by the handshake
	tls         *tls.ConnectionState // nil in plaintext; fixed before the connection is served

	mu     sync.Mutex // guards below: handlers, writers and whoever closes
	closed bool
	shares map[*share]struct{}
}

// Read returns what was peeked at first.
func (c *clientConn) Read(p []byte) (int, error) {
	if len(c.peeked) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.peeked)
	c.peeked = c.peeked[n:]
	return n, nil
}

func (c *clientConn) onClose(s *share) {
	c.mu.Lock()
	if !c.closed {
		if c.shares == nil {
			c.shares = make(map[*share]struct{})
		}
		c.shares[s] = struct{}{}
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	s.abandon()
}

func (c *clientConn) forget(s *share) {
	c.mu.Lock()
	delete(c.shares, s)
	c.mu.Unlock()
}

// Close closes the connection and gives back what its answers hold of the read budget.
func (c *clientConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	c.closed = true
	shares := c.shares
	c.shares = nil
	c.mu.Unlock()
	for s := range shares {
		s.abandon()
	}
	return err
}

// connKey is the context key of a connection that net/http serves.
type connKey struct{}

// connOf returns the connection of the call that ctx belongs to, nil if it is not one of ours.
func connOf(ctx context.Context) *clientConn {
	if c, ok := ctx.Value(connKey{}).(*clientConn); ok {
		return c
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(authInfo); ok {
			return info.conn
		}
	}
	return nil
}

// authInfo is what grpc keeps of a connection that it serves itself.
type authInfo struct {
	credentials.CommonAuthInfo
	conn *clientConn
}

// AuthType is "tls" or "insecure".
func (a authInfo) AuthType() string {
	if a.conn.tls != nil {
		return "tls"
	}
	return "insecure"
}

// handshaken are transport credentials for connections that have their handshake behind them: the listener
// makes it, because it must know what the client offers before it chooses a server.
type handshaken struct{}

var _ credentials.TransportCredentials = handshaken{}

// ServerHandshake attaches the connection to every call on it.
func (handshaken) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	inner := raw
	if secure, ok := raw.(*tls.Conn); ok {
		inner = secure.NetConn()
	}
	c, ok := inner.(*clientConn)
	if !ok { // from the local listener
		c = &clientConn{Conn: raw}
		raw = c
	}
	level := credentials.NoSecurity
	if c.tls != nil {
		level = credentials.PrivacyAndIntegrity
	}
	return raw, authInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: level}, conn: c}, nil
}

// ClientHandshake is never called: these are a server's credentials.
func (handshaken) ClientHandshake(_ context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return raw, nil, nil
}

// Info describes the protocol.
func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns the receiver, which has no state.
func (h handshaken) Clone() credentials.TransportCredentials { return h }

// OverrideServerName does nothing.
func (handshaken) OverrideServerName(string) error { return nil }
