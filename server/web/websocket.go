package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gorilla/websocket"
	"go.uber.org/zap"
)

func websocketRequest(r *http.Request) bool { return websocket.IsWebSocketUpgrade(r) }

// serveWebsocket runs one gateway call over a websocket: each text message in is one JSON request of the
// body, each line of the answer one text message out.
func (g *gateway) serveWebsocket(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{CheckOrigin: g.originAllowed}
	var header http.Header
	token, bearer := strings.CutPrefix(r.Header.Get("Sec-WebSocket-Protocol"), "Bearer")
	if bearer { // a browser must be told which of its protocols was chosen
		header = http.Header{"Sec-WebSocket-Protocol": {"Bearer"}}
	}
	conn, err := upgrader.Upgrade(w, r, header)
	if err != nil {
		g.cfg.Logger.Debug("websocket upgrade failed", zap.Error(err)) // the upgrader has answered
		return
	}
	defer conn.Close()
	conn.SetReadLimit(g.cfg.BodyBytesMax)

	// The context of a hijacked connection does not end when the client leaves.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	body, requests := io.Pipe()
	call := r.Clone(ctx)
	call.Method, call.Body, call.ContentLength = http.MethodPost, body, -1
	for name := range r.Header {
		if strings.HasPrefix(name, "Sec-Websocket-") || name == "Connection" || name == "Upgrade" {
			call.Header.Del(name)
		}
	}
	if bearer {
		call.Header.Set("Authorization", "Bearer "+strings.TrimLeft(token, ", "))
	} else if cookie, err := r.Cookie("token"); err == nil {
		call.Header.Set("Authorization", "Bearer "+cookie.Value)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer cancel() // the client has left
		// A call that does not stream reads its body to the end: that is after one message.
		single := !slices.Contains(streamPaths(), r.URL.Path)
		requests.CloseWithError(copyMessages(requests, conn, single))
	}()
	out := &messageWriter{conn: conn, header: http.Header{}}
	g.mux.ServeHTTP(out, call)
	out.end()
	body.Close()
	conn.Close()
	<-read
}

// copyMessages writes each text message of conn to body, until the client leaves or nobody reads. With
// single the body ends after the first, and what follows is read for the goodbye in it only.
func copyMessages(body *io.PipeWriter, conn *websocket.Conn, single bool) error {
	for {
		_, text, err := conn.ReadMessage()
		if err != nil {
			var closed *websocket.CloseError
			if errors.As(err, &closed) {
				return io.EOF
			}
			return err
		}
		if _, err := body.Write(append(text, '\n')); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return err
		}
		if single {
			body.Close()
		}
	}
}

// originAllowed lets pages of this host and those of --cors in; programs send no Origin.
func (g *gateway) originAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(g.cfg.CORS, "*") || slices.Contains(g.cfg.CORS, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// messageWriter is the answer of a call over a websocket.
type messageWriter struct {
	conn   *websocket.Conn
	header http.Header // nobody sees it
	rest   bytes.Buffer
}

func (m *messageWriter) Header() http.Header { return m.header }
func (m *messageWriter) WriteHeader(int)     {}
func (m *messageWriter) Flush()              {}

// Write sends each complete line.
func (m *messageWriter) Write(p []byte) (int, error) {
	m.rest.Write(p)
	for {
		i := bytes.IndexByte(m.rest.Bytes(), '\n')
		if i < 0 {
			return len(p), nil
		}
		line := m.rest.Next(i + 1)
		if err := m.send(line[:i]); err != nil {
			return 0, err
		}
	}
}

func (m *messageWriter) send(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	return m.conn.WriteMessage(websocket.TextMessage, line)
}

// end sends what has no newline, the answer of a call that does not stream, and says goodbye.
func (m *messageWriter) end() {
	_ = m.send(m.rest.Bytes()) // a client that has left needs no answer
	_ = m.conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

var _ http.Flusher = (*messageWriter)(nil)
