package hostaddr

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Sockets visits the sockets of this network namespace by its lists of them in proc, such as tcp and udp6.
func Sockets(proc string, lists []string, visit func(local netip.AddrPort, listens bool)) error {
	for _, name := range lists {
		file, err := os.Open(filepath.Join(proc, "thread-self/net", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("look for sockets: %w", err)
		}
		if err := errors.Join(visitSockets(file, visit), file.Close()); err != nil {
			return fmt.Errorf("look for sockets in %s: %w", name, err)
		}
	}
	return nil
}

// visitSockets reads a list: after a heading, a line for each socket. There each 32 bits of an address are a
// hexadecimal number in the order of the processor's bytes (net/ipv4/tcp_ipv4.c, get_openreq4 and tcp6_seq_show).
func visitSockets(list io.Reader, visit func(local netip.AddrPort, listens bool)) error {
	const stateListen = "0A"
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 4 || words[0] == "sl" {
			continue
		}
		address, number, _ := strings.Cut(words[1], ":")
		b, err := hex.DecodeString(address)
		port, portErr := strconv.ParseUint(number, 16, 16)
		if err := errors.Join(err, portErr); err != nil {
			return err
		}
		for word := range slices.Chunk(b, 4) {
			if len(word) == 4 {
				binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
			}
		}
		if a, ok := netip.AddrFromSlice(b); ok {
			visit(netip.AddrPortFrom(a.Unmap(), uint16(port)), words[3] == stateListen)
		}
	}
	return lines.Err()
}
