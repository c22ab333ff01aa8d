package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"nftproxy/conntrack"
	"nftproxy/daemon/proxy"
	"nftproxy/nft"
	"nftproxy/watch"
)

// applySysctls sets the kernel's settings at the start. The function that it returns
// sets the ones that did not exist, after the first sync: the first rules may load
// the kernel module that has them, and sets what is wanted by then. Every other
// failure is reported once.
func (d *daemon) applySysctls() (afterSync func(proxy.Sync)) {
	list := d.setWanted()
	missing := func(s conntrack.Setting) bool { return errors.Is(s.Err, fs.ErrNotExist) }
	later := slices.ContainsFunc(list, missing)
	list = slices.DeleteFunc(list, missing)
	d.reportSysctls(list)
	reported := func(s conntrack.Setting) bool {
		return s.Err != nil && slices.ContainsFunc(list, func(o conntrack.Setting) bool {
			return o.Name == s.Name && o.Err != nil && o.Err.Error() == s.Err.Error()
		})
	}
	return func(s proxy.Sync) {
		if !later || !s.InForce(nft.IPv4) && !s.InForce(nft.IPv6) {
			return
		}
		later = false
		d.reportSysctls(slices.DeleteFunc(d.setWanted(), reported))
	}
}

// setWanted sets the kernel's settings that are wanted now.
func (d *daemon) setWanted() []conntrack.Setting {
	o := d.wanted.Load()
	return o.Apply(o.files())
}

// reportSysctls reports the settings that were set, and those that are wanted and
// could not be set. Each has a line in the log. The failures with the same reason
// share one event.
func (d *daemon) reportSysctls(list []conntrack.Setting) {
	failed := map[string][]string{}
	for _, s := range list {
		switch {
		case s.Wanted == "":
		case s.Err != nil:
			d.log.Warn("could not set a kernel setting; going on without it", "setting", s.Name, "current", s.Current, "wanted", s.Wanted, "err", s.Err)
			why := s.Err.Error()
			if cause := errors.Unwrap(s.Err); cause != nil {
				why = cause.Error() // without the setting's name
			}
			failed[why] = append(failed[why], fmt.Sprintf("%s=%s (is %s)", s.Name, s.Wanted, cmp.Or(s.Current, "unknown")))
		case s.Set:
			d.log.Info("changed a kernel setting", "setting", s.Name, "value", s.Current)
		}
	}
	for why, settings := range failed {
		d.record(watch.Event{
			Object: watch.NodeObject(d.node), Reason: watch.ReasonSysctl,
			Note: fmt.Sprintf("%s: cannot set %s", why, strings.Join(settings, ", ")),
		})
	}
}
