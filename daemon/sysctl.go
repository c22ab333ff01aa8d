package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"nftproxy/conntrack"
	"nftproxy/daemon/proxy"
	"nftproxy/nft"
	"nftproxy/watch"
)

// Sysctls keeps the kernel's settings of connection tracking as they are wanted.
type Sysctls struct {
	reporter
	files  conntrack.Files
	wanted atomic.Pointer[conntrack.Sysctls]
	// atStart sets them, and returns what was set and reported. later says that some did not exist.
	atStart func() []conntrack.Setting
	later   bool
}

// NewSysctls makes settings that a configuration wants. The process sets none yet.
func NewSysctls(c Config, record func(watch.Event)) *Sysctls {
	s := &Sysctls{reporter: reporter{c.Log, c.Node, record}, files: c.SysctlFiles}
	s.wanted.Store(&c.Sysctls)
	s.atStart = sync.OnceValue(s.setFirst)
	return s
}

// set changes the settings that are wanted, and reports what that does.
func (s *Sysctls) set(wanted conntrack.Sysctls) {
	s.wanted.Store(&wanted)
	s.reportSysctls(s.apply())
}

func (s *Sysctls) apply() []conntrack.Setting { return s.wanted.Load().Apply(s.files) }

// setFirst sets what exists. Every failure is reported once.
func (s *Sysctls) setFirst() []conntrack.Setting {
	list := s.apply()
	missing := func(s conntrack.Setting) bool { return errors.Is(s.Err, fs.ErrNotExist) }
	s.later = slices.ContainsFunc(list, missing)
	list = slices.DeleteFunc(list, missing)
	s.reportSysctls(list)
	return list
}

// observe sets what did not exist at the start, once, after the first sync: the first rules may load
// the kernel module that has it. It sets what is wanted by then.
func (s *Sysctls) observe(sync proxy.Sync) {
	first := s.atStart()
	if !s.later || !sync.InForce(nft.IPv4) && !sync.InForce(nft.IPv6) {
		return
	}
	s.later = false
	s.reportSysctls(slices.DeleteFunc(s.apply(), func(now conntrack.Setting) bool {
		return now.Err != nil && slices.ContainsFunc(first, func(o conntrack.Setting) bool {
			return o.Name == now.Name && o.Err != nil && o.Err.Error() == now.Err.Error()
		})
	}))
}

// Initialise sets the kernel's settings of connection tracking, which is all that needs more than CAP_NET_ADMIN, and
// nothing else (--init-only). The error joins one for each setting that is wanted and could not be set.
func Initialise(c Config) error {
	c.logNotes()
	s := NewSysctls(c, func(watch.Event) {}) // the error has the failures
	list := s.apply()
	s.reportSysctls(list)
	var errs []error
	for _, s := range list {
		if s.Wanted != "" && s.Err != nil {
			errs = append(errs, fmt.Errorf("--init-only: %w", s.Err))
		}
	}
	return errors.Join(errs...)
}

// reportSysctls reports the settings that were set, and those that are wanted and could not be set. Each has a line in
// the log. The failures with the same reason share one event.
func (r reporter) reportSysctls(list []conntrack.Setting) {
	failed := map[string][]string{}
	for _, s := range list {
		switch {
		case s.Wanted == "":
		case s.Err != nil:
			r.log.Warn("could not set a kernel setting; going on without it", "setting", s.Name, "current", s.Current, "wanted",
				s.Wanted, "err", s.Err)
			why := s.Err.Error()
			if cause := errors.Unwrap(s.Err); cause != nil {
				why = cause.Error() // without the setting's name
			}
			failed[why] = append(failed[why], fmt.Sprintf("%s=%s (is %s)", s.Name, s.Wanted, cmp.Or(s.Current, "unknown")))
		case s.Set:
			r.log.Info("changed a kernel setting", "setting", s.Name, "value", s.Current)
		}
	}
	for why, settings := range failed {
		r.aboutNode(watch.ReasonSysctl, fmt.Sprintf("%s: cannot set %s", why, strings.Join(settings, ", ")))
	}
}
