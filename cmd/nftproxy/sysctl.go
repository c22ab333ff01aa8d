package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"nftproxy/conntrack"
	"nftproxy/internal/proxy"
	"nftproxy/nft"
	"nftproxy/watch"
)

// applySysctls sets the kernel's settings before anything else is done. What is
// not there yet has another chance after the first sync, by the function that
// is returned: the module that has them may be loaded by the first rules. What
// has failed otherwise is told once.
func (d *daemon) applySysctls() (afterSync func(proxy.Sync)) {
	list := d.options.sysctls.Apply(d.options.sysctls.files())
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
		d.reportSysctls(slices.DeleteFunc(d.options.sysctls.Apply(d.options.sysctls.files()), reported))
	}
}

// reportSysctls tells what was set, and what is wanted and was not: each in the
// log, and all in one event for each reason.
func (d *daemon) reportSysctls(list []conntrack.Setting) {
	failed := map[string][]string{}
	for _, s := range list {
		switch {
		case s.Wanted == "":
		case s.Err != nil:
			d.log.Warn("a kernel setting is not as asked for; going on", "setting", s.Name, "current", s.Current, "wanted", s.Wanted, "err", s.Err)
			why := s.Err.Error()
			if cause := errors.Unwrap(s.Err); cause != nil {
				why = cause.Error() // without the setting's name
			}
			failed[why] = append(failed[why], fmt.Sprintf("%s=%s (is %s)", s.Name, s.Wanted, cmp.Or(s.Current, "unknown")))
		case s.Set:
			d.log.Info("kernel setting changed", "setting", s.Name, "value", s.Current)
		}
	}
	for why, settings := range failed {
		d.record(watch.Event{
			Object: watch.NodeObject(d.node), Reason: watch.ReasonSysctl,
			Note: fmt.Sprintf("%s: cannot set %s", why, strings.Join(settings, ", ")),
		})
	}
}
