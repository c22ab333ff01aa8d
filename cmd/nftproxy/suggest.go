package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nftproxy/daemon/process"
	"nftproxy/daemon/takeover"
	"nftproxy/model/service"
	"nftproxy/model/spelling"
	"nftproxy/nft/ruleset"
)

// unknownFlag adds to an error about a flag that a command does not have the flag that was meant, if there is one.
func unknownFlag(cmd *cobra.Command, err error) error {
	unknown := (*pflag.NotExistError)(nil)
	if !errors.As(err, &unknown) {
		return err
	}
	if args := cmd.Flags().Args(); len(args) > 0 && cmd.HasAvailableSubCommands() { // the flag is that of a command
		return unknownCommand(cmd, args, cobra.NoArgs(cmd, args))
	}
	name := unknown.GetSpecifiedName()
	if cmd.Flags().Lookup(ownPrefix+name) != nil {
		return fmt.Errorf("%w: did you mean --%s%s?", err, ownPrefix, name)
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags = append(flags, f.Name)
		}
	})
	if meant := spelling.Nearest(name, flags); meant != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, meant)
	}
	if run, _, _ := cmd.Find([]string{"run"}); !cmd.HasParent() && run.Flags().Lookup(name) != nil {
		return fmt.Errorf("%w: did you mean %s --%s?", err, run.CommandPath(), name) // kube-proxy has no command
	}
	return err
}

// unknownCommand does the same for the first argument of a command that has commands below it.
func unknownCommand(cmd *cobra.Command, args []string, err error) error {
	if len(args) == 0 || !cmd.HasAvailableSubCommands() {
		return err
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if meant := spelling.Nearest(args[0], names); meant != "" {
		return fmt.Errorf("%w: did you mean %q?", err, meant)
	}
	return err
}

// checkBuiltIn has a mistyped shell or command be an error in the commands that cobra makes, which print help.
func checkBuiltIn(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args, cmd.RunE = cobra.NoArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			markArgs(cmd)
		case "help":
			cmd.Run, cmd.RunE = nil, func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err = cmp.Or(err, cobra.NoArgs(about, rest)); err != nil {
					return usageError{unknownCommand(about, rest, err)}
				}
				about.InitDefaultHelpFlag() // it is in the text
				return about.Help()
			}
		}
	}
}

// flagValues has the words that flags take, whichever command has them.
func flagValues() map[string][]string {
	return map[string][]string{
		outputFlag: {string(outputText), string(outputWide), string(outputJSON), string(outputYAML)},
		"await":    {takeover.NameOurs, takeover.NameTheirs}, "protocol": {"tcp", "udp", "sctp"},
		cleanEstablishedFlag:   {"tcp", "sctp"},
		"detect-local-mode":    {"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"},
		"proxy-mode":           {"iptables", "ipvs", "nftables"},
		"nodeport-addresses":   service.NodePortWords(),
		logFormatFlag:          {process.FormatText, process.FormatJSON},
		"version":              {"true", "false", "raw"},
		balanceFlag:            {service.ByRandom.String(), service.ByClient.String(), service.ByFlow.String()},
		ejectFlag:              {service.EjectOff.String(), service.EjectReport.String(), service.EjectOn.String()},
		flowsFlag:              flowsWords(),
		"result":               resultWords(),
		ownPrefix + "counters": {countersNone, countersTables, countersMetrics},
	}
}

// unknownValue is the error about a value of a flag that is none of its words.
func unknownValue(flag, value string, others ...string) error {
	return notAmong(flag, value, append(flagValues()[flag], others...))
}

// notAmong names the words, and first the one that was meant, if there is one.
func notAmong(flag, value string, words []string) error {
	last := len(words) - 1
	return fmt.Errorf("--%s: %q: %swant %s or %s", flag, value, spelling.DidYouMean(value, words),
		strings.Join(words[:last], ", "), words[last])
}

func notNegative[T int | time.Duration](flag string, value T) error {
	if value < 0 {
		return fmt.Errorf("--%s: %v is negative", flag, value)
	}
	return nil
}

// completeFlag completes the values of a flag, if the command has it.
func completeFlag(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if cmd.Flags().Lookup(flag) == nil {
		return
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic(err) // the flag is there
	}
}

func completeWords(cmd *cobra.Command, flag string, words ...string) {
	completeFlag(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeFlags completes the values of the flags of a command and of those below it: fixed words, and the names in the
// tables.
func completeFlags(cmd *cobra.Command) {
	for flag, values := range flagValues() {
		completeWords(cmd, flag, values...)
	}
	completeFlag(cmd, "service", func(cmd *cobra.Command, _ []string, toComplete string) ([]string,
		cobra.ShellCompDirective) {
		return inTables(cmd).completeServices(cmd, nil, toComplete)
	})
	completeFlag(cmd, "namespace", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return inTables(cmd).namespaces(cmd)
	})
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
}

// inTables reads the tables that the command is about.
func inTables(cmd *cobra.Command) *getOptions {
	o := &getOptions{table: ruleset.DefaultTable}
	if table := cmd.Flag(ownPrefix + "table"); table != nil {
		o.table = table.Value.String()
	}
	if namespace := cmd.Flag("namespace"); namespace != nil {
		o.namespace = namespace.Value.String()
	}
	o.allNamespaces = cmd.Flags().Changed("all-namespaces")
	return o
}
