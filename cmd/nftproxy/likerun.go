package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"nftproxy/daemon"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagsOfRun returns the flags that a run would have: those given, or those of a process.
func (o *verifyOptions) flagsOfRun(f *pflag.FlagSet) (commandLine, error) {
	given := newCommandLine(f, "output", "limit", "like")
	switch {
	case o.like < 0:
		return nil, fmt.Errorf("--like: %d is no process ID", o.like)
	case o.like > 0 && len(given) > 0:
		return nil, errors.New("--like cannot be combined with flags of run")
	case o.like > 0:
		like, err := runFlagsOf(o.like)
		if err != nil {
			return nil, fmt.Errorf("--like: %w", err)
		}
		return like, nil
	case len(given) > 0:
		return given, nil
	}
	const first = 1
	if like, err := runFlagsOf(first); err == nil {
		return like, nil
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return nil, errors.New("no Services to compare with: give the flags of run, such as --kubeconfig or --nftproxy-manifests")
	}
	return given, nil
}

// runFlagsOf returns the command line of a process, which must be an nftproxy run.
func runFlagsOf(pid int) (commandLine, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return nil, err
	}
	words := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	if len(words) < 2 || filepath.Base(words[0]) != "nftproxy" || words[1] != "run" {
		return nil, fmt.Errorf("process %d is no nftproxy run", pid)
	}
	return commandLine(words[2:]), nil
}

// verified is what the command line asks for, with the configuration file that it
// names.
func (c commandLine) verified() (*daemon.Config, error) {
	var o runOptions
	cmd := &cobra.Command{}
	o.addFlags(cmd)
	if err := cmd.ParseFlags(c); err != nil {
		return nil, err
	}
	text, err := o.config.read()
	if err != nil {
		return nil, err
	}
	return c.config(text)
}
