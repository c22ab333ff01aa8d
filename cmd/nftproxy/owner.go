package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ownerText describes the process that has a netlink port ID in this network
// namespace. The port ID of a process's first socket is its PID, but later sockets
// get any number. So ownerText looks for the socket's inode in /proc.
func ownerText(port uint32) string {
	inode, err := netlinkInode(port)
	if err != nil {
		return fmt.Sprintf("netlink port %d", port)
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == "socket:["+inode+"]" {
			pid := strings.Split(fd, "/")[2]
			command, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			return fmt.Sprintf("PID %s (%s)", pid, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")))
		}
	}
	return fmt.Sprintf("netlink port %d, in another PID namespace", port)
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
