package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nftproxy/daemon"
	"nftproxy/daemon/kubeproxyconfig"
)

// configOptions are the flags of kube-proxy about its configuration as a whole.
type configOptions struct {
	file, writeTo     string
	initOnly, cleanup bool
	version           string
	// text is the file.
	text []byte
	// origin names the field of the file that each flag's value came from.
	origin map[string]string
	// notes say what was given and has no effect.
	notes []string
}

func (o *configOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "config", "", "configuration file of kube-proxy (kubeproxy.config.k8s.io/v1alpha1); it overrides kube-proxy's other flags, except --hostname-override, --master and -v")
	f.StringVar(&o.writeTo, "write-config-to", "", "write kube-proxy's default configuration to this file and exit")
	f.BoolVar(&o.initOnly, "init-only", false, "set the kernel's settings of connection tracking and exit")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove nftproxy's tables and exit, as the command cleanup does")
	f.StringVar(&o.version, "version", "false", "print the version and exit: true, false or raw")
	f.Lookup("version").NoOptDefVal = "true"
}

// checkVersion judges --version.
func (o *configOptions) checkVersion() error {
	if !slices.Contains([]string{"true", "false", "raw"}, o.version) {
		return fmt.Errorf("--version: %q: want true, false or raw", o.version)
	}
	return nil
}

// overFile says whether a flag decides although there is a configuration file: as
// some do with kube-proxy, and nftproxy's own.
func overFile(flag string) bool {
	return strings.HasPrefix(flag, ownPrefix) || strings.HasPrefix(flag, "log-") || slices.Contains([]string{
		"config", "write-config-to", "init-only", "cleanup", "version", "hostname-override", "master",
		"v", "vmodule", "logging-format",
	}, flag)
}

// read returns the text of the configuration file; none without --config.
func (o *configOptions) read() ([]byte, error) {
	if o.file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.file)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return text, nil
}

// commandLine has the flags of a command line as they were given, to be read again
// with another text of the configuration file.
type commandLine []string

func newCommandLine(f *pflag.FlagSet, without ...string) commandLine {
	var given commandLine
	f.Visit(func(g *pflag.Flag) {
		if slices.Contains(without, g.Name) {
			return
		}
		value := g.Value.String()
		if list, ok := g.Value.(pflag.SliceValue); ok {
			var text strings.Builder
			w := csv.NewWriter(&text)
			_ = w.Write(list.GetSlice()) // to memory
			w.Flush()
			value = strings.TrimSuffix(text.String(), "\n")
		}
		given = append(given, "--"+g.Name+"="+value)
	})
	return given
}

// config is what the command line and the text of the configuration file
// ask for. The error joins one for each bad flag or field.
func (c commandLine) config(text []byte) (*daemon.Config, error) {
	var o runOptions
	cmd := &cobra.Command{}
	o.addFlags(cmd)
	if err := cmd.ParseFlags(c); err != nil {
		return nil, err
	}
	o.config.text = text
	bad := o.config.resolve(cmd.Flags(), text)
	config, err := o.run()
	if err = errors.Join(bad, o.config.rename(err)); err != nil {
		return nil, err
	}
	config.Parse, config.Flags = c.config, map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { config.Flags[f.Name] = f.Value.String() })
	return config, nil
}

// resolve gives each flag the value that counts: kube-proxy's deprecated flags, and the
// configuration file with the text, stand for flags too.
func (o *configOptions) resolve(f *pflag.FlagSet, text []byte) error {
	o.origin = map[string]string{}
	if o.file == "" {
		o.notes = append(o.notes, ignoredFlags(f)...)
		o.notes = append(o.notes, ignoredPeriod(f)...)
		return errors.Join(resolveMode(f), resolvePorts(f), resolvePeriod(f))
	}
	file, bad := kubeproxyconfig.Parse(text)
	if bad != nil {
		bad = fmt.Errorf("--config: %s: %w", o.file, bad)
	}
	if file == nil {
		return bad
	}
	f.Visit(func(g *pflag.Flag) {
		if !overFile(g.Name) {
			o.notes = append(o.notes, fmt.Sprintf("--%s has no effect: the configuration file decides", g.Name))
			resetFlag(g)
		}
	})
	o.notes = append(o.notes, ignoredFlags(f)...)
	o.notes = append(o.notes, file.Notes...)
	for _, s := range file.Settings() {
		g := f.Lookup(s.Flag)
		if g.Changed && overFile(s.Flag) || s.Flag == "kubeconfig" && f.Changed(ownPrefix+"manifests") {
			continue // --nftproxy-manifests stands for an API server
		}
		if err := g.Value.Set(s.Value); err != nil {
			bad = errors.Join(bad, fmt.Errorf("--config: %s: %s: %q: %w", o.file, s.Field, s.Value, err))
		}
		o.origin[s.Flag] = s.Field
	}
	return bad
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
