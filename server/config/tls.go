package config

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// TLSVersion translates "TLS1.2" and "TLS1.3"; the empty text is 0, Go's default.
func TLSVersion(text string) (uint16, error) {
	switch text {
	case "":
		return 0, nil
	case "TLS1.2":
		return tls.VersionTLS12, nil
	case "TLS1.3":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("unexpected TLS version %q (must be one of: TLS1.2, TLS1.3)", text)
}

func checkTLSVersions(c *Config) error {
	low, err := TLSVersion(c.TLSMinVersion)
	if err != nil {
		return err
	}
	high, err := TLSVersion(c.TLSMaxVersion)
	if err != nil {
		return err
	}
	if high != 0 && low > high {
		return fmt.Errorf("min version (%s) is greater than max version (%s)", c.TLSMinVersion, c.TLSMaxVersion)
	}
	if low == tls.VersionTLS13 && len(c.CipherSuites) > 0 {
		return errors.New("cipher suites cannot be configured when only TLS1.3 is enabled")
	}
	return nil
}

// Suites translates --cipher-suites; nil leaves the choice to Go.
func (c *Config) Suites() ([]uint16, error) {
	var ids []uint16
next:
	for _, name := range c.CipherSuites {
		for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
			if s.Name == name {
				ids = append(ids, s.ID)
				continue next
			}
		}
		return nil, fmt.Errorf("unexpected TLS cipher suite %q", name)
	}
	return ids, nil
}

func (c *Config) checkSuites() error {
	_, err := c.Suites()
	return err
}
