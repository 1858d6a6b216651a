package conformance

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// wsCase is a call over a websocket: what is sent, and how many messages come back.
type wsCase struct {
	path    string
	header  http.Header
	send    []string // "\x00" in front makes it a binary message
	answers int
}

// websocket makes one call and returns what came of it, line by line.
func (s *party) websocket(c wsCase) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, same(fmt.Sprintf(format, args...))) }
	dialer := websocket.Dialer{HandshakeTimeout: 5 * time.Second}
	conn, resp, err := dialer.Dial("ws"+strings.TrimPrefix(s.Client, "http")+c.path, c.header)
	if err != nil {
		code := 0
		if resp != nil {
			code = resp.StatusCode
		}
		add("refused %d", code)
		return lines
	}
	defer conn.Close()
	add("protocol %q", resp.Header.Get("Sec-WebSocket-Protocol"))
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // a fresh connection takes one
	for _, m := range c.send {
		kind := websocket.TextMessage
		if text, binary := strings.CutPrefix(m, "\x00"); binary {
			kind, m = websocket.BinaryMessage, text
		}
		if err := conn.WriteMessage(kind, []byte(m)); err != nil {
			add("write fails")
		}
	}
	for range c.answers {
		kind, text, err := conn.ReadMessage()
		if err != nil {
			add("ends")
			return lines
		}
		if kind != websocket.TextMessage {
			add("kind %d", kind)
		}
		add("%s", text)
	}
	return lines
}

// Streams of the gateway over a websocket, and upgrades that are refused. Calls that do not stream are left out:
// the reference waits for the end of a body that a websocket does not have.
func TestParityWebsocket(t *testing.T) {
	p := pairUp(t)
	key := base64.StdEncoding.EncodeToString([]byte("k"))
	compareHTTP(t, p, []httpCase{{"POST", "/v3/kv/put", fmt.Sprintf(`{"key":%q,"value":%q}`, key, key), nil}})
	create := fmt.Sprintf(`{"create_request":{"key":%q,"start_revision":"1","prev_kv":true}}`, key)
	for _, c := range []wsCase{
		{path: "/v3/watch", send: []string{create}, answers: 2},
		{path: "/v3/watch", send: []string{create, `{"cancel_request":{"watch_id":"7"}}`}, answers: 2},
		{path: "/v3/watch", send: []string{"\x00" + create}, answers: 2},
		{path: "/v3/watch?x=y", send: []string{create}, answers: 2},
		{path: "/v3beta/watch", send: []string{create}, answers: 2},
		{path: "/v3/watch", send: []string{`{"create_request":{"start_revision":"-1"}}`}, answers: 1},
		{path: "/v3/lease/keepalive", send: []string{`{"ID":"7"}`, `{"ID":"8"}`}, answers: 2},
		{path: "/v3/lease/keepalive", send: []string{`{"ID":"7"} {"ID":"8"}`}, answers: 2},
		{path: "/v3/watch", header: http.Header{"Origin": {"http://evil.example"}}, send: []string{create}, answers: 1},
		{path: "/v3/watch", header: http.Header{"Sec-WebSocket-Protocol": {"Bearer, x"}}, send: []string{create}, answers: 1},
		{path: "/v3/watch", header: http.Header{"Sec-WebSocket-Protocol": {"other"}}, send: []string{create}, answers: 1},
		{path: "/v3/watch", header: http.Header{"Cookie": {"token=x"}}, send: []string{create}, answers: 1},
		{path: "/v3/watch", header: http.Header{"Authorization": {"x"}}, send: []string{create}, answers: 1},
		{path: "/v3alpha/watch"}, {path: "/version"}, {path: "/"}, {path: "/health"},
	} {
		ref, got := both(p, func(s *party) []string { return s.websocket(c) })
		if fmt.Sprint(ref) != fmt.Sprint(got) {
			t.Errorf("%s %q %q\nreference: %q\nsluice:    %q", c.path, c.header, c.send, ref, got)
		}
	}
	alive(t, p)
}
