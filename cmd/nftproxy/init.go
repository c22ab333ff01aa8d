package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/watch"
)

// initialise sets the kernel's settings of connection tracking, which is all
// that needs more than CAP_NET_ADMIN, and nothing else (--init-only). The error
// joins one for each setting that is wanted and could not be set.
func (d *daemon) initialise() error {
	d.logNotes()
	d.record = func(watch.Event) {} // the error has the failures
	list := d.options.sysctls.Apply(d.options.sysctls.files())
	d.reportSysctls(list)
	var errs []error
	for _, s := range list {
		if s.Wanted != "" && s.Err != nil {
			errs = append(errs, fmt.Errorf("--init-only: %w", s.Err))
		}
	}
	return errors.Join(errs...)
}

// notes say what was given and has no effect.
func (d *daemon) notes() []string {
	notes := slices.Clone(d.options.config.notes)
	for _, gate := range d.options.claims.withoutEffect {
		notes = append(notes, fmt.Sprintf("the feature gate %s has no effect: nftproxy has no such gate", gate))
	}
	if d.ruleset.NodePortAddresses.Loopback() {
		notes = append(notes, "loopback addresses serve no node ports: nftables cannot serve them there, in kube-proxy's nftables mode neither")
	}
	return notes
}

// logNotes logs the notes once.
func (d *daemon) logNotes() {
	if notes := d.notes(); len(notes) > 0 {
		d.log.Warn("parts of the configuration have no effect", "notes", notes)
	}
}

// checkOOMScoreAdj refuses a score that is no number or out of range.
func checkOOMScoreAdj(score string) error {
	if score == "" {
		return nil
	}
	if n, err := strconv.Atoi(score); err != nil || n < -1000 || n > 1000 {
		return fmt.Errorf("--oom-score-adj: %q: want -1000 to 1000", score)
	}
	return nil
}

// writeDefaults writes kube-proxy's default configuration (--write-config-to).
func writeDefaults(path string) error {
	text, err := kubeproxyconfig.Default()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}
