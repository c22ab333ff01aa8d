package otherproxy

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// network is the network namespace of the caller. To read which one another process is in takes the
// capabilities of that process, or CAP_SYS_PTRACE. Anybody may read which Unix sockets there are in it. So
// the caller's namespace has a socket with a name that no other has.
type network struct {
	socket net.PacketConn
	name   string
}

func markNetwork() (network, error) {
	n := network{name: "@nftproxy-here-" + rand.Text()}
	var err error
	if n.socket, err = net.ListenPacket("unixgram", n.name); err != nil {
		return n, fmt.Errorf("mark the network namespace: %w", err)
	}
	return n, nil
}

func (n network) end() { _ = n.socket.Close() } // It has no data to lose.

// lacks says that a process, with its directory in proc, is certainly in another network namespace.
func (n network) lacks(proc, process string) bool {
	own, err := os.Readlink(filepath.Join(proc, "thread-self/ns/net"))
	if err != nil {
		return false
	}
	if other, err := os.Readlink(filepath.Join(process, "ns/net")); err == nil {
		return other != own
	}
	sockets, err := os.Open(filepath.Join(process, "net/unix"))
	if err != nil {
		return false
	}
	defer sockets.Close()
	lines := bufio.NewScanner(sockets)
	any := false
	for lines.Scan() {
		// The name is the last column.
		if strings.HasSuffix(lines.Text(), " "+n.name) {
			return false
		}
		any = true
	}
	return any && lines.Err() == nil
}
