package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// greeting reads the line by which a server says who it is.
func greeting(conn net.Conn) (Answer, error) {
	if err := conn.SetDeadline(time.Now().Add(longest)); err != nil {
		return Answer{}, err
	}
	var line []byte
	for one := make([]byte, 1); len(line) == 0 || line[len(line)-1] != '\n'; {
		// Byte by byte: what follows the line is the reader's who comes next.
		if _, err := conn.Read(one); err != nil {
			return Answer{}, err
		}
		line = append(line, one[0])
	}
	id, peer, err := testnet.ParseAnswer(string(line))
	if err != nil {
		return Answer{}, err
	}
	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return Answer{Kind: Answered, Pod: id, Source: source(local.Addr(), peer.Addr())}, err
}

// echo says a line and expects it back.
func echo(conn net.Conn, read *bufio.Reader, n int) error {
	if err := conn.SetDeadline(time.Now().Add(longest)); err != nil {
		return err
	}
	said := fmt.Sprintf("line %d\n", n)
	if _, err := conn.Write([]byte(said)); err != nil {
		return err
	}
	heard, err := read.ReadString('\n')
	if err == nil && heard != said {
		err = fmt.Errorf("said %q, heard %q", said, heard)
	}
	return err
}

// kindOf says how a connection attempt ended that failed.
func kindOf(err error) Kind {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH),
		errors.Is(err, unix.EACCES):
		return Rejected
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) &&
		timeout.Timeout():
		return Silent
	}
	return Broken
}
