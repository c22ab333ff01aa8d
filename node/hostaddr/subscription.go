package hostaddr

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// subscription says that something has changed, not how. So it holds at most one
// notice, and its goroutine never waits for a reader.
type subscription struct {
	socket *nl.NetlinkSocket
	// changed holds a token while a change may be unread.
	changed chan struct{}
	// lost gets the error that ends the subscription.
	lost chan error
	// ended is closed when the goroutine has ended.
	ended chan struct{}
	// matters says whether a notice counts; nil for all.
	matters func(syscall.NetlinkMessage) bool
}

// subscribe subscribes to groups. If there is a filter, the kernel drops the notices that it
// does not accept. Of the others those count that matter; nil stands for all.
func subscribe(filter []unix.SockFilter, matters func(syscall.NetlinkMessage) bool,
	groups ...uint) (*subscription, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, err
	}
	if len(filter) > 0 {
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(socket.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
			socket.Close()
			return nil, fmt.Errorf("attach filter: %w", err)
		}
	}
	s := &subscription{socket: socket, changed: make(chan struct{}, 1), lost: make(chan error, 1),
		ended: make(chan struct{}), matters: matters}
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
		notices, _, err := s.socket.Receive()
		switch {
		case err == nil && s.matters != nil && !slices.ContainsFunc(notices, s.matters):
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
