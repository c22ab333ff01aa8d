package process

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrCgo says that the binary was built with cgo: Go cannot change all threads of such a process. The
// binaries of a release have no cgo.
var ErrCgo = errors.New("the binary was built with cgo (build it with CGO_ENABLED=0)")

// UseCapabilities makes those capabilities effective that the process has and does not use. The container image's
// binary has CAP_NET_ADMIN as a permitted file capability, so that a user other than root has it too; the kernel leaves
// the rest to the program (capabilities(7)). All threads change together.
//
// Were it effective in the file, the kernel would refuse to start the binary in every container without the capability.
func UseCapabilities() error {
	s, err := OwnCapabilities()
	if err != nil || s.Permitted == s.Effective {
		return err
	}
	use := capset(s.Permitted, s.Permitted, s.Inheritable)
	use.what = fmt.Sprintf("use the capabilities %v", s.Permitted)
	return use.run()
}

// LimitPrivileges gives up all capabilities but two: CAP_NET_ADMIN, for nftables, connection tracking and its
// settings, and CAP_NET_BIND_SERVICE, for servers and healthCheckNodePorts below 1024. The latter allows
// nothing beyond the former, which may set net.ipv4.ip_unprivileged_port_start.
//
// It comes before the proxy reads its kubeconfig, so that a file which it cannot read any more, because
// another user owns it, shows at the start. The configuration file was read before; it is
// read without the privileges when it changes.
//
// A process that has more than it needs serves as well as others, so a failure does not end it.
func LimitPrivileges(log *slog.Logger) {
	before, after, err := LimitCapabilities(CapabilitiesOf(unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE))
	if err != nil {
		log.Warn("could not give up privileges; going on with more than nftproxy needs", "capabilities",
			after.Permitted.String(), "err", err)
		return
	}
	if before != after {
		log.Info("gave up privileges", "kept", after.Permitted.String(), "before", before.Permitted.Len())
	}
}

// LimitCapabilities gives up every capability that keep does not have. It returns the states before and after. What
// the process does not have it cannot keep; a process that has nothing to give up stays as it is.
//
// All threads change together. An error of the kernel leaves what was given up before.
func LimitCapabilities(keep Capabilities) (before, after CapabilityState, err error) {
	if before, err = OwnCapabilities(); err != nil {
		return before, before, err
	}
	for _, s := range steps(before, keep) {
		if err = s.run(); err != nil {
			break
		}
	}
	after, failed := OwnCapabilities()
	return before, after, errors.Join(err, failed)
}

// step is a system call that every thread makes.
type step struct {
	what string
	do   func() syscall.Errno
}

func (s step) run() error {
	switch errno := s.do(); errno {
	case 0:
		return nil
	case unix.ENOTSUP:
		return ErrCgo
	default:
		return fmt.Errorf("%s: %w", s.what, errno)
	}
}

func prctl(what string, option, argument uintptr) step {
	return step{what, func() syscall.Errno {
		_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, option, argument, 0, 0, 0, 0)
		return errno
	}}
}

// The bits of linux/securebits.h.
const (
	noRoot, noRootLocked               = 1 << 0, 1 << 1
	noSetuidFixupLocked                = 1 << 3
	keepCapsLocked                     = 1 << 5
	noAmbient, noAmbientLocked         = 1 << 6, 1 << 7
	securebits                 uintptr = noRoot | noRootLocked | noSetuidFixupLocked | keepCapsLocked |
		noAmbient | noAmbientLocked
)

// steps lead from a state to one without any other capability than those to keep. The order matters: the
// bounding set and the securebits need CAP_SETPCAP, which goes with the rest.
//
// The securebits say that the user root has no capabilities by its name: a program that this process starts
// as root has none. They are locked, for good (capabilities(7)).
func steps(s CapabilityState, keep Capabilities) []step {
	var list []step
	if s.Effective.Has(unix.CAP_SETPCAP) {
		for _, c := range s.Bounding.Without(keep).members() {
			list = append(list, prctl(fmt.Sprintf("drop capability %d from the bounding set", c), unix.PR_CAPBSET_DROP,
				uintptr(c)))
		}
		list = append(list, prctl("set the securebits", unix.PR_SET_SECUREBITS, securebits))
	}
	if s.Ambient != 0 {
		list = append(list, prctl("clear the ambient capabilities", unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL))
	}
	if s.Permitted.Without(keep) != 0 || s.Inheritable != 0 {
		list = append(list, capset(s.Permitted&keep, s.Effective&keep, 0))
	}
	if !s.NoNewPrivileges {
		list = append(list, prctl("set no_new_privs", unix.PR_SET_NO_NEW_PRIVS, 1))
	}
	return list
}

// capset sets the capabilities of the thread.
func capset(permitted, effective, inheritable Capabilities) step {
	return step{"set the capabilities", func() syscall.Errno {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // PID 0: the thread itself
		data := [2]unix.CapUserData{
			{Permitted: uint32(permitted), Effective: uint32(effective), Inheritable: uint32(inheritable)},
			{Permitted: uint32(permitted >> 32), Effective: uint32(effective >> 32), Inheritable: uint32(inheritable >> 32)},
		}
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
			uintptr(unsafe.Pointer(&data)), 0)
		return errno
	}}
}
