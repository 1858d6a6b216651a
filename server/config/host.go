package config

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// RouteHost returns the IPv4 address of the interface of the default route, as Linux's routing table says.
func RouteHost() (string, error) {
	file, err := os.Open("/proc/net/route")
	if err != nil {
		return "", fmt.Errorf("read the routing table: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || fields[1] != "00000000" || fields[7] != "00000000" {
			continue
		}
		return interfaceHost(fields[0])
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read the routing table: %w", err)
	}
	return "", errors.New("no default route")
}

func interfaceHost(name string) (string, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("look up interface %s: %w", name, err)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return "", fmt.Errorf("list addresses of %s: %w", name, err)
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String(), nil
		}
	}
	return "", fmt.Errorf("interface %s has no IPv4 address", name)
}
