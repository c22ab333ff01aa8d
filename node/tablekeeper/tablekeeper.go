// Package tablekeeper says which processes of this network namespace keep which tables: each nftproxy run says so by
// a socket, and on kernels with owners of tables the owner is known by its netlink port.
package tablekeeper

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"nftproxy/node/otherproxy"
)

// OwnerText describes the process that has a netlink port ID in this network
// namespace. The port ID of a process's first socket is its PID, but later sockets
// get any number. So OwnerText looks for the socket's inode in /proc.
//
// A PID says something only where the reader sees the same processes: in a container it
// is 1, which is another process on the node. There the text says so.
func OwnerText(port uint32) string {
	inode, err := netlinkInode(port)
	if err != nil || inode == "" {
		return fmt.Sprintf("netlink port %d", port)
	}
	return holderText(inode)
}

// holderText describes the process that has a socket.
func holderText(inode string) string {
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == "socket:["+inode+"]" {
			return processText(strings.Split(fd, "/")[2], otherproxy.SeesNode())
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this node"
	}
	return fmt.Sprintf("which this container does not see (probably the pod of nftproxy on %s)", host)
}

// processText describes the process with that PID.
func processText(pid string, node bool) string {
	command, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
	text := strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
	if !node {
		return fmt.Sprintf("the process %q of this container", text)
	}
	groups, _ := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	return fmt.Sprintf("PID %s (%s)%s", pid, text, podText(string(groups)))
}

// podText names the pod of a process by its cgroup, such as
// /kubepods/burstable/pod91e8d3fb-7a3d-4d43-9bd8-1c1b4a1a5c7e/0123... or, with systemd,
// kubepods-burstable-pod91e8d3fb_7a3d_4d43_9bd8_1c1b4a1a5c7e.slice.
func podText(groups string) string {
	match := regexp.MustCompile(`pod([0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})`).FindStringSubmatch(groups)
	if match == nil {
		return ""
	}
	return fmt.Sprintf(", of the pod with the UID %s", strings.ReplaceAll(match[1], "_", "-"))
}

// netlinkInode finds a netfilter socket's inode in /proc/net/netlink. Its columns
// are: sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode.
func netlinkInode(port uint32) (inode string, err error) {
	const netfilter = "12"
	err = sockets("netlink", func(words []string) {
		if len(words) == 10 && words[1] == netfilter && words[2] == fmt.Sprint(port) {
			inode = words[9]
		}
	})
	return inode, err
}

// sockets visits the words of each line in a list of this network namespace's sockets.
func sockets(list string, visit func(words []string)) error {
	f, err := os.Open("/proc/thread-self/net/" + list)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		visit(strings.Fields(lines.Text()))
	}
	return lines.Err()
}

// keeperPrefix begins the names of the abstract sockets by which processes say which
// tables they keep. A socket is visible in the network namespace, as the tables are.
// It disappears with its process, however that ends.
const keeperPrefix = "@nftproxy-table-"

// Keep says that this process keeps its tables, until end is called or the
// process ends. name is that of the socket.
func Keep(table string, log *slog.Logger) (name string, end func()) {
	name = keeperOf(table) + rand.Text()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		log.Warn("cannot mark our tables as in use: a run with another --nftproxy-table may remove them", "table", table,
			"err", err)
		return name, func() {}
	}
	return name, func() { _ = socket.Close() } // It has no data to lose.
}

// keeperOf returns the beginning of the sockets' names for a table. It has a hash,
// since the table's name may be longer than a socket's name can be.
func keeperOf(table string) string {
	return fmt.Sprintf("%s%x-", keeperPrefix, sha256.Sum256([]byte(table)))
}

// List returns the sockets of all processes that keep a table.
func List() (Keepers, error) {
	inodes := Keepers{}
	err := sockets("unix", func(words []string) {
		// The columns are: Num RefCount Protocol Flags Type St Inode Path.
		if len(words) == 8 && strings.HasPrefix(words[7], keeperPrefix) {
			inodes[words[7]] = words[6]
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look for other processes: %w", err)
	}
	return inodes, nil
}

// Keepers are the sockets by which processes say which tables they keep: their inodes, by
// their names.
type Keepers map[string]string

// Used says whether a running nftproxy uses the table of that name. owner is its owner's netlink port, 0 for none: a
// used table has an owner, or on kernels without owners a process that keeps it (see Keep).
func (k Keepers) Used(table string, owner uint32) bool { return owner != 0 || len(k.of(table, "")) > 0 }

// of returns the inodes of a table's Keepers, sorted, without the socket of that name.
func (k Keepers) of(table, except string) []string {
	var inodes []string
	for name, inode := range k {
		if name != except && strings.HasPrefix(name, keeperOf(table)) {
			inodes = append(inodes, inode)
		}
	}
	slices.Sort(inodes)
	return inodes
}

// Texts describes the processes that keep a table, without the one with the socket of that
// name.
func (k Keepers) Texts(table, except string) []string {
	var list []string
	for _, inode := range k.of(table, except) {
		list = append(list, holderText(inode))
	}
	return list
}

// Describe describes the processes that keep a table, without the one with the socket except.
func Describe(table, except string) ([]string, error) {
	k, err := List()
	if err != nil {
		return nil, err
	}
	return k.Texts(table, except), nil
}
