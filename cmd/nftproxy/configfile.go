package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"nftproxy/daemon/kubeproxyconfig"
)

// configOptions are the flags of kube-proxy about its configuration as a whole.
type configOptions struct {
	file, writeTo string
	featureGates  []string
	initOnly      bool
	// origin names the field of the file that each flag's value came from.
	origin map[string]string
	// notes say what was given and has no effect.
	notes []string
}

func (o *configOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "config", "", "configuration file of kube-proxy (kubeproxy.config.k8s.io/v1alpha1); it overrides kube-proxy's other flags, except --hostname-override, --master and -v")
	f.StringVar(&o.writeTo, "write-config-to", "", "write kube-proxy's default configuration to this file and exit")
	f.BoolVar(&o.initOnly, "init-only", false, "set the kernel's settings of connection tracking and exit")
	f.StringSliceVar(&o.featureGates, "feature-gates", nil, "feature gates of kube-proxy, as NAME=true or NAME=false; "+kubeproxyconfig.GateExternalIPs+" is --allow-service-external-ips, the others have no effect")
}

// overFile lists the flags that decide although there is a configuration file:
// those that do so with kube-proxy, and nftproxy's own.
func overFile() []string {
	return []string{
		"config", "write-config-to", "init-only", "hostname-override", "master", "v",
		"manifests", "table", "allow-service-external-ips", "max-service-elements", "max-affinity-ports", "protected-node-ports",
		"masquerade-bit", "min-sync-period", "conntrack-sysctl-dir", cleanEstablishedFlag,
	}
}

// resolve gives each flag the value that counts: kube-proxy's deprecated flags
// and feature gates, and the configuration file, stand for flags too.
func (o *configOptions) resolve(f *pflag.FlagSet) error {
	o.origin = map[string]string{}
	if o.file == "" {
		o.notes = append(o.notes, ignoredFlags(f)...)
		return errors.Join(resolveMode(f), o.resolveGates(f), resolvePorts(f), resolveAliases(f))
	}
	text, err := os.ReadFile(o.file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	file, err := kubeproxyconfig.Parse(text)
	if err != nil {
		return fmt.Errorf("--config: %s: %w", o.file, err)
	}
	over := overFile()
	f.Visit(func(g *pflag.Flag) {
		if !slices.Contains(over, g.Name) {
			o.notes = append(o.notes, fmt.Sprintf("--%s has no effect: the configuration file decides", g.Name))
			resetFlag(g)
		}
	})
	o.notes = append(o.notes, file.Notes...)
	for _, s := range file.Settings() {
		g := f.Lookup(s.Flag)
		if g.Changed && slices.Contains(over, s.Flag) || s.Flag == "kubeconfig" && f.Changed("manifests") {
			continue // --manifests stands for an API server
		}
		if err := g.Value.Set(s.Value); err != nil {
			return fmt.Errorf("--config: %s: %s: %q: %w", o.file, s.Field, s.Value, err)
		}
		o.origin[s.Flag] = s.Field
	}
	return nil
}

// resetFlag gives a flag its default again.
func resetFlag(g *pflag.Flag) {
	if list, ok := g.Value.(pflag.SliceValue); ok {
		var words []string
		if text := strings.Trim(g.DefValue, "[]"); text != "" {
			words = strings.Split(text, ",")
		}
		_ = list.Replace(words) // the default was a valid list
		return
	}
	_ = g.Value.Set(g.DefValue)
}

// resolveGates reads --feature-gates.
func (o *configOptions) resolveGates(f *pflag.FlagSet) error {
	for _, word := range o.featureGates {
		name, value, _ := strings.Cut(word, "=")
		name = strings.TrimSpace(name)
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("--feature-gates: %q: want NAME=true or NAME=false", word)
		}
		if name != kubeproxyconfig.GateExternalIPs {
			o.notes = append(o.notes, fmt.Sprintf("--feature-gates=%s has no effect: nftproxy has no such gate", strings.TrimSpace(word)))
			continue
		}
		if g := f.Lookup("allow-service-external-ips"); !g.Changed {
			_ = g.Value.Set(strconv.FormatBool(on)) // a flag of this type takes it
		}
	}
	return nil
}

// rename names the field of the file in an error about a flag that has its value
// from there: errors begin with the flag.
func (o *configOptions) rename(err error) error {
	var list []error
	for _, e := range flatten(err) {
		for flag, field := range o.origin {
			if rest, found := strings.CutPrefix(e.Error(), "--"+flag+":"); found {
				e = fmt.Errorf("--config: %s: %s:%s", o.file, field, rest)
				break
			}
		}
		list = append(list, e)
	}
	return errors.Join(list...)
}

// flatten lists what errors.Join has put together.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var list []error
	for _, e := range joined.Unwrap() {
		list = append(list, flatten(e)...)
	}
	return list
}
