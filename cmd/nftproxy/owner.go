package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"nftproxy/node/otherproxy"
)

// ownerText describes the process that has a netlink port ID in this network
// namespace. The port ID of a process's first socket is its PID, but later sockets
// get any number. So ownerText looks for the socket's inode in /proc.
//
// A PID says something only where the reader sees the same processes: in a container it
// is 1, which is another process on the node. There the text says so.
func ownerText(port uint32) string {
	inode, err := netlinkInode(port)
	if err != nil {
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
func netlinkInode(port uint32) (string, error) {
	f, err := os.Open("/proc/thread-self/net/netlink")
	if err != nil {
		return "", err
	}
	defer f.Close()
	const netfilter = "12"
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 10 && words[1] == netfilter && words[2] == fmt.Sprint(port) {
			return words[9], nil
		}
	}
	return "", fmt.Errorf("netlink port %d: no such socket", port)
}
