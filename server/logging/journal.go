package logging

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

const journalSocket = "/run/systemd/journal/socket"

// journal writes log lines to systemd's journal in its native protocol. Lines are JSON; the priority comes
// from the line's level.
type journal struct {
	conn       *net.UnixConn
	identifier string
	datagram   []byte
}

func dialJournal(socket string) (*journal, error) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("can't find journal (%w)", err)
	}
	return &journal{conn: conn, identifier: filepath.Base(os.Args[0])}, nil
}

// priority maps zap's levels to syslog's.
func priority(level string) string {
	switch level {
	case "debug":
		return "7"
	case "info":
		return "6"
	case "warn":
		return "4"
	case "error":
		return "3"
	default: // dpanic, panic, fatal
		return "2"
	}
}

// Write sends one datagram per line.
func (j *journal) Write(lines []byte) (int, error) {
	n := len(lines)
	for len(lines) > 0 {
		line, rest, _ := bytes.Cut(lines, []byte("\n"))
		lines = rest
		var entry struct {
			Level string `json:"level"`
		}
		if err := json.Unmarshal(line, &entry); err != nil {
			return 0, fmt.Errorf("read the level of a line: %w", err)
		}
		d := appendField(j.datagram[:0], "MESSAGE", string(line))
		d = appendField(d, "PRIORITY", priority(entry.Level))
		d = appendField(d, "PACKAGE", "sluice")
		j.datagram = appendField(d, "SYSLOG_IDENTIFIER", j.identifier)
		if _, err := j.conn.Write(j.datagram); err != nil {
			return 0, fmt.Errorf("send to the journal: %w", err)
		}
	}
	return n, nil
}

// appendField adds one field in the form that allows any value: name, newline, length, value, newline.
func appendField(d []byte, name, value string) []byte {
	d = append(d, name...)
	d = append(d, '\n')
	d = binary.LittleEndian.AppendUint64(d, uint64(len(value)))
	d = append(d, value...)
	return append(d, '\n')
}

// Close closes the socket.
func (j *journal) Close() error { return j.conn.Close() }
