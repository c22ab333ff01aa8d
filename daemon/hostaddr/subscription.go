package hostaddr

import (
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// subscription says that addresses have changed, not how. So it holds at most one
// notice, and its goroutine never waits for a reader.
type subscription struct {
	socket *nl.NetlinkSocket
	// changed holds a token while a change may be unread.
	changed chan struct{}
	// lost gets the error that ends the subscription.
	lost chan error
	// ended is closed when the goroutine has ended.
	ended chan struct{}
}

func subscribe() (*subscription, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, err
	}
	s := &subscription{socket: socket, changed: make(chan struct{}, 1), lost: make(chan error, 1), ended: make(chan struct{})}
	go s.receive()
	return s, nil
}

// end closes the socket and waits for the goroutine.
func (s *subscription) end() {
	s.socket.Close()
	<-s.ended
}

func (s *subscription) receive() {
	defer close(s.ended)
	for {
		_, _, err := s.socket.Receive()
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS): // The kernel has dropped notices: something has changed.
			select {
			case s.changed <- struct{}{}:
			default:
			}
		case errors.Is(err, unix.EINTR):
		default:
			s.lost <- err
			return
		}
	}
}
