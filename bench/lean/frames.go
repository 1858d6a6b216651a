package lean

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
)

// frames handles every whole frame that has been read.
func (c *Conn) frames() error {
	for c.inTo-c.inFrom >= frameHeaderBytes {
		b := c.in[c.inFrom:c.inTo]
		n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
		if n > frameBytesMax {
			return fmt.Errorf("a frame of %d bytes, at most %d are allowed", n, frameBytesMax)
		}
		if len(b) < frameHeaderBytes+n {
			break
		}
		id := binary.BigEndian.Uint32(b[5:]) & windowMax
		c.inFrom += frameHeaderBytes + n
		err := c.frame(http2.FrameType(b[3]), http2.Flags(b[4]), id, b[frameHeaderBytes:frameHeaderBytes+n])
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) frame(t http2.FrameType, flags http2.Flags, id uint32, p []byte) error {
	switch t {
	case http2.FrameData:
		return c.data(flags, id, p)
	case http2.FrameHeaders:
		return c.headersFrame(flags, id, p)
	case http2.FrameRSTStream:
		if s := c.streams[id]; s != nil && len(p) == 4 {
			s.seen = true
			why := http2.ErrCode(binary.BigEndian.Uint32(p))
			s.status = StatusError{Code: 13, Message: "stream reset: " + why.String()}
			return c.end(s)
		}
	case http2.FrameSettings:
		if !flags.Has(http2.FlagSettingsAck) {
			c.settings(p)
		}
	case http2.FramePing:
		if !flags.Has(http2.FlagPingAck) {
			c.out = appendFrame(c.out, http2.FramePing, http2.FlagPingAck, 0, len(p))
			c.out = append(c.out, p...)
		}
	case http2.FrameGoAway:
		return fmt.Errorf("the server closes the connection: %q", p[min(8, len(p)):])
	case http2.FrameWindowUpdate:
		if len(p) != 4 {
			return fmt.Errorf("a window update of %d bytes", len(p))
		}
		n := int64(binary.BigEndian.Uint32(p))
		if id == 0 {
			c.room += n
		} else if s := c.streams[id]; s != nil {
			s.room += n
		}
	case http2.FrameContinuation, http2.FramePushPromise:
		return fmt.Errorf("unexpected %v frame", t)
	}
	return nil
}

func (c *Conn) settings(p []byte) {
	for ; len(p) >= 6; p = p[6:] {
		value := binary.BigEndian.Uint32(p[2:])
		switch http2.SettingID(binary.BigEndian.Uint16(p)) {
		case http2.SettingInitialWindowSize:
			for _, s := range c.streams {
				s.room += int64(value) - c.initial
			}
			c.initial = int64(value)
		case http2.SettingMaxConcurrentStreams:
			c.most = int(value)
		case http2.SettingHeaderTableSize:
			// Only ever larger than what the cached blocks use.
		}
	}
	c.out = appendFrame(c.out, http2.FrameSettings, http2.FlagSettingsAck, 0, 0)
}

// grow lets the server send n more bytes, on the stream or, for id 0, on the connection.
func (c *Conn) grow(id uint32, n int64) {
	c.out = appendFrame(c.out, http2.FrameWindowUpdate, 0, id, 4)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(n))
}

// consume counts received bytes against a window, and reopens it before the server notices.
func (c *Conn) consume(id uint32, consumed *int64, n int) {
	*consumed += int64(n)
	if *consumed > windowMax/2 {
		c.grow(id, *consumed)
		*consumed = 0
	}
}

func (c *Conn) data(flags http2.Flags, id uint32, p []byte) error {
	c.consume(0, &c.consumed, len(p))
	s := c.streams[id]
	if s == nil {
		return nil // cancelled
	}
	c.consume(id, &s.consumed, len(p))
	if flags.Has(http2.FlagDataPadded) {
		if len(p) == 0 || int(p[0]) >= len(p) {
			return fmt.Errorf("a data frame of %d bytes with too much padding", len(p))
		}
		p = p[1 : len(p)-int(p[0])]
	}
	if err := c.messages(s, p); err != nil {
		return err
	}
	if flags.Has(http2.FlagDataEndStream) {
		return c.end(s)
	}
	return nil
}

// messages cuts what arrived on s into messages. One that lies in p as a whole is handed over in place.
func (c *Conn) messages(s *Stream, p []byte) error {
	for len(p) > 0 {
		if len(s.partial) == 0 && len(p) >= prefixBytes {
			n := int(binary.BigEndian.Uint32(p[1:]))
			if p[0] != 0 {
				return fmt.Errorf("a compressed message of %d bytes", n)
			}
			if len(p)-prefixBytes >= n {
				if err := c.handler.Message(s, p[prefixBytes:prefixBytes+n]); err != nil {
					return err
				}
				p = p[prefixBytes+n:]
				continue
			}
		}
		want := prefixBytes
		if len(s.partial) >= prefixBytes {
			want += int(binary.BigEndian.Uint32(s.partial[1:]))
		}
		take := min(want-len(s.partial), len(p))
		s.partial = append(s.partial, p[:take]...)
		p = p[take:]
		if len(s.partial) < want || want == prefixBytes && binary.BigEndian.Uint32(s.partial[1:]) > 0 {
			continue
		}
		msg := s.partial[prefixBytes:]
		s.partial = s.partial[:0]
		if err := c.handler.Message(s, msg); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) headersFrame(flags http2.Flags, id uint32, p []byte) error {
	const unsupported = http2.FlagHeadersPadded | http2.FlagHeadersPriority
	if !flags.Has(http2.FlagHeadersEndHeaders) || flags&unsupported != 0 {
		return fmt.Errorf("a header block in a form that is not supported: flags %#x", flags)
	}
	s := c.streams[id]
	if s == nil {
		s = &Stream{} // cancelled; its fields enter the table all the same
	}
	c.decoding = s
	if _, err := c.decoder.Write(p); err != nil {
		return fmt.Errorf("decode a header block: %w", err)
	}
	if err := c.decoder.Close(); err != nil {
		return fmt.Errorf("decode a header block: %w", err)
	}
	if flags.Has(http2.FlagHeadersEndStream) && c.streams[id] != nil {
		return c.end(s)
	}
	return nil
}

// end takes s out and tells the handler. A stream without a status, or with half a message, did not end well.
func (c *Conn) end(s *Stream) error {
	delete(c.streams, s.id)
	var err error
	switch {
	case !s.seen:
		err = &StatusError{Code: 13, Message: "the stream ended without a grpc-status"}
	case s.status.Code != 0:
		e := s.status
		err = &e
	case len(s.partial) > 0:
		err = &StatusError{Code: 13, Message: "the stream ended inside a message"}
	}
	if herr := c.handler.Ended(s, err); herr != nil {
		return herr
	}
	c.spare = append(c.spare, s)
	return nil
}
